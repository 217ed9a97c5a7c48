"""State of a session in memory: weights, moments and the accumulated gradient; its losses."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ratchet.algorithms.kl import bounded_log_ratio, kl_estimate
from ratchet.algorithms.language import losses
from ratchet.algorithms.language.losses import TokenLoss
from ratchet.errors import DataError, ParameterError, nearest
from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import Completion, SampleRequest
from ratchet.language_models.training_service.interface import (
    ForwardBackward,
    OptimizerSettings,
    TrainingExample,
)
from ratchet.models.lora import Lora
from ratchet.models.optimizers import Adam
from ratchet.service.models import StoredModel
from ratchet.service.training.trained_model import TrainedModel
from ratchet.service.training_sessions.operations import MODEL_STOPS, Stops

_ROWS_AT_ONCE = 32
_FIRST_LENGTH = 64  # tokens sampled before looking for stop texts; then four times as many
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], TokenLoss]
"""Log-probabilities, those of the sampler, advantages and mask, ``[B, T]`` each → the loss."""

LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
"""Bounds of the ratio, as Tinker names them: 1 − ε_lo and 1 + ε_hi of the formulas."""
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "cross_entropy": (),
    "reinforce": (),
    "importance_sampling": (),
    "ppo": (LOW, HIGH),
    "gspo": (LOW, HIGH),
    "cispo": (LOW, HIGH),
    "dro": ("beta",),
}


def find_loss(name: str, config: Mapping[str, float]) -> Loss:
    """Return the loss of a name with the parameters of ``config``."""
    if name not in _PARAMETERS:
        hint = nearest(name, _PARAMETERS)
        raise ParameterError(f"loss: got {name!r}, expected one of {', '.join(_PARAMETERS)}.{hint}")
    for parameter in config:
        if parameter not in _PARAMETERS[name]:
            expected = ", ".join(sorted(_PARAMETERS[name])) or "none"
            raise ParameterError(f"loss_config of {name}: got {parameter!r}, expected {expected}.")
    match name:
        case "cross_entropy":
            return lambda log_prob, _old, _advantage, mask: losses.cross_entropy(log_prob, mask)
        case "reinforce":
            return lambda log_prob, _old, advantage, mask: losses.reinforce(
                log_prob, advantage, mask
            )
        case "importance_sampling":
            return losses.importance_sampling
        case "dro":
            return partial(losses.dro, beta=config.get("beta", 0.05))
        case "cispo":
            low, high = config.get(LOW, 0.8), config.get(HIGH, 1.2)
            return partial(losses.cispo, min_ratio=low, max_ratio=high)
        case "ppo":
            low, high = _distances(config, 0.2, 0.2)
            return partial(losses.ppo_clip, clip_low=low, clip_high=high)
        case _:
            low, high = _distances(config, 3e-4, 4e-4)
            return partial(losses.gspo, clip_low=low, clip_high=high)


def _distances(config: Mapping[str, float], low: float, high: float) -> tuple[float, float]:
    """Return ε_lo and ε_hi: distances of the bounds from 1."""
    return 1 - config.get(LOW, 1 - low), config.get(HIGH, 1 + high) - 1


@dataclass(slots=True)
class _Part:
    """Results of a part of the examples."""

    figures: dict[str, float]
    log_probs: list[tuple[float, ...]]
    gradients: Sequence[Tensor]


class SessionState:
    """The model that a session trains, in float32: all weights, or an adapter of a rank above 0.

    The same calls in the same order give the same bits on a CPU.
    """

    def __init__(self, start: StoredModel, lora: Lora, seed: int) -> None:
        torch.set_num_threads(1)  # sums in one order, for equal bits
        self._trained = TrainedModel(
            *(start.id, start.complete_folder, start.adapters, lora, seed),
            shares_prompts=True,
            saves_memory=False,
        )
        self._model = self._trained.model
        self._weights = self._trained.parameters()
        self._adam = Adam(self._weights)
        self._gradients: list[Tensor] | None = None

    def forward_backward(
        self,
        examples: Sequence[TrainingExample],
        loss: str,
        config: Mapping[str, float],
        *,
        backward: bool = True,
    ) -> ForwardBackward:
        """Compute the loss of examples; accumulate its gradient if ``backward``."""
        follow = find_loss(loss, config)
        for number, example in enumerate(examples):
            self._check(number, example, loss)
        gathered = None if self._gradients is None else [g.clone() for g in self._gradients]
        parts: list[_Part] = []
        for start in range(0, len(examples), _ROWS_AT_ONCE):
            some = examples[start : start + _ROWS_AT_ONCE]
            with torch.set_grad_enabled(backward):
                part = self._read(some, follow, backward=backward)
            parts.append(part)
            if gathered is None:
                gathered = [gradient.clone() for gradient in part.gradients]
            else:
                for sum_of, gradient in zip(gathered, part.gradients, strict=backward):
                    sum_of.add_(gradient)
            part.gradients = ()
        metrics = _together(parts)
        sums = gathered if backward and gathered else ()
        is_finite = all(map(math.isfinite, metrics.values()))
        if not is_finite or not all(bool(gradient.isfinite().all()) for gradient in sums):
            raise DataError(
                "The gradient, or a sum over the tokens, is not finite; no gradient was added."
                " Check the log-probabilities and advantages, or clip ratios."
            )
        if backward:
            self._gradients = gathered
        log_probs = tuple(values for part in parts for values in part.log_probs)
        return ForwardBackward(metrics, log_probs)

    def optim_step(self, settings: OptimizerSettings) -> dict[str, float]:
        """Follow the accumulated gradient and reset it."""
        if self._gradients is None:
            raise DataError("optim_step: no gradient was gathered since the last one.")
        norm = float(torch.stack(torch._foreach_norm(self._gradients)).norm())
        max_norm, factor = settings.max_grad_norm, 1.0
        if max_norm and norm > max_norm:
            factor = max_norm / norm
        torch._foreach_mul_(self._gradients, factor)
        self._adam.step(
            self._gradients,
            learning_rate=settings.learning_rate,
            beta1=settings.beta1,
            beta2=settings.beta2,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        self._gradients = None
        return {
            "grad_norm": norm,
            "learning_rate": settings.learning_rate,
            "step": float(self._adam.steps),
        }

    def sample(
        self, requests: Sequence[SampleRequest], stops: Stops = MODEL_STOPS
    ) -> list[Completion]:
        """Sample with the current weights."""
        engine = InProcessEngine(self._model, end_ids=stops.end_ids)
        if not stops.texts:
            return engine.generate(requests)
        completions: dict[int, Completion] = {}
        length = _FIRST_LENGTH
        while waiting := [index for index in range(len(requests)) if index not in completions]:
            some = [replace(r, max_tokens=min(r.max_tokens, length)) for r in requests]
            for index, sampled in zip(
                waiting, engine.generate([some[index] for index in waiting]), strict=True
            ):
                completion = cut_at_texts(sampled, stops.texts, self._model.tokenizer.decode)
                is_partial = completion.finish_reason == "length" == sampled.finish_reason
                if not (is_partial and len(sampled.tokens) == length < requests[index].max_tokens):
                    completions[index] = completion
            length *= 4
        return [completions[index] for index in range(len(requests))]

    def save_model(self, folder: Path) -> None:
        """Write the model's folder, or the adapter's with a reference to its base."""
        self._trained.save(folder)

    def write(self, file: Path) -> None:
        """Write weights and moments, between steps, atomically."""
        if self._gradients is not None:
            raise DataError("A gradient was gathered; save the optimizer behind its step.")
        tensors = {name: tensor.detach().contiguous() for name, tensor in self._tensors().items()}
        temporary_file = file.with_suffix(".part")
        save_file(tensors, temporary_file, metadata={"steps": str(self._adam.steps)})
        descriptor = os.open(temporary_file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        temporary_file.replace(file)

    def read(self, file: Path, *, optimizer: bool = True) -> None:
        """Load weights from a file of :meth:`write`; and moments, which are reset otherwise."""
        with safe_open(file, framework="pt") as tensor_file, torch.no_grad():
            for name, tensor in self._tensors().items():
                if optimizer or name.startswith("weight."):
                    tensor.copy_(tensor_file.get_tensor(name))
                else:
                    tensor.zero_()
            self._adam.steps = int(tensor_file.metadata()["steps"]) if optimizer else 0
        self._gradients = None

    def _tensors(self) -> dict[str, Tensor]:
        kinds: dict[str, Sequence[Tensor]] = {
            "weight": self._weights,
            "mean": self._adam.means,
            "square": self._adam.squares,
        }
        return {
            f"{kind}.{index}": tensor
            for kind, tensors in kinds.items()
            for index, tensor in enumerate(tensors)
        }

    def _check(self, number: int, example: TrainingExample, loss: str) -> None:
        if loss != "cross_entropy" and example.advantages is None and any(example.loss_mask):
            raise DataError(
                f"examples[{number}]: loss {loss!r} needs advantages, one for each token, and got"
                " none. Without them every term of the loss would be 0."
            )
        context = self._model.context_length
        if not 0 < len(example.tokens) <= context:
            raise DataError(
                f"examples[{number}]: got {len(example.tokens)} tokens, expected 1 to {context},"
                " the model's context."
            )
        for token in (min(example.tokens), max(example.tokens)):
            if not 0 <= token < self._model.vocabulary_size:
                raise DataError(
                    f"examples[{number}]: got token {token}, expected 0 to"
                    f" {self._model.vocabulary_size - 1}, the model's vocabulary."
                )

    def _read(
        self,
        examples: Sequence[TrainingExample],
        loss: Loss,
        *,
        backward: bool,
    ) -> _Part:
        width = max(len(example.tokens) for example in examples)
        device = self._model.device
        ids = _rectangle([example.tokens for example in examples], width).long().to(device)
        mask = _rectangle([example.loss_mask for example in examples], width).to(device) > 0
        preceding = torch.zeros_like(mask)
        preceding[:, :-1] = mask[:, 1:]  # a token is predicted from the position before it
        token_log_probs, entropies = self._model.map_logits(
            _token_log_probs, ids, preceding, ids[mask]
        )
        log_probs = torch.zeros(mask.shape, device=device).index_put((mask,), token_log_probs)
        detached = log_probs.detach()
        old = _rows_or([e.log_probs for e in examples], detached)
        advantages = _rows_or([e.advantages for e in examples], torch.zeros_like(detached))
        weights = _rows_or([e.weights for e in examples], torch.ones_like(detached))
        computed = loss(log_probs, old, advantages, mask)
        total = (computed.loss * weights)[mask].sum()
        gradients: Sequence[Tensor] = ()
        if backward:
            gradients = torch.autograd.grad(total, self._weights, materialize_grads=True)
        rounded_log_probs = [
            tuple(_short(value) for value in row[: len(example.tokens)])
            for row, example in zip(detached.tolist(), examples, strict=True)
        ]
        log_ratio = bounded_log_ratio((detached - old)[mask])
        clipped = {
            name: float(computed.metrics[name][mask].sum()) if name in computed.metrics else 0.0
            for name in ("clip_fraction_low", "clip_fraction_high")
        }
        with torch.no_grad():
            figures = {
                "loss": float(total),
                "tokens": float(mask.sum()),
                "ratio": float(log_ratio.exp().sum()),
                "kl": float(kl_estimate(-log_ratio, "k3").sum()),
                "entropy": float(entropies.sum()),
            }
        return _Part(figures | clipped, rounded_log_probs, gradients)


def _token_log_probs(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of tokens [m], and the sum of their entropies, [1]."""
    log_probs = logits.float().log_softmax(-1)
    with torch.no_grad():
        entropy = -(log_probs.exp() * log_probs).sum()
    return log_probs.gather(1, tokens[:, None])[:, 0], entropy[None]


def cut_at_texts(
    completion: Completion, texts: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> Completion:
    """Return a completion up to the token that completes one of the texts."""
    tokens = completion.tokens
    if not any(text in decode(tokens) for text in texts):
        return completion
    lengths = range(1, len(tokens) + 1)
    count = 1 + bisect_left(
        lengths, True, key=lambda n: any(text in decode(tokens[:n]) for text in texts)
    )
    return Completion(tokens[:count], completion.log_probs[:count], "stop")


def _together(parts: Sequence[_Part]) -> dict[str, float]:
    """Return the loss and the number of tokens as sums, other metrics as means over tokens."""
    names = parts[0].figures if parts else {}
    sums = {name: sum(part.figures[name] for part in parts) for name in names}
    count = max(1.0, sums.get("tokens", 0.0))
    summed = {"loss", "tokens"}
    return {name: value if name in summed else value / count for name, value in sums.items()}


def _rectangle(rows: Sequence[Sequence[float]], width: int) -> Tensor:
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


def _rows_or(rows: Sequence[Sequence[float] | None], default: Tensor) -> Tensor:
    """Return the rows as a rectangle, with those of ``default``, ``[B, T]``, where one is None."""
    values = default.clone()
    for index, row in enumerate(rows):
        if row is not None:
            values[index, : len(row)] = torch.tensor(row).to(values)
    return values


def _short(value: float) -> float:
    """Return a number with the digits that float32 needs."""
    return float(f"{value:.9g}")
