"""All that a model learns in an iteration at a training service, as a value: known by its content.

Shape letters: B rows, T tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from ratchet.errors import ParameterError
from ratchet.language_models.local.rollout_engine import log_prob_differences
from ratchet.language_models.training_service.interface import (
    KEPT_ANSWERS,
    ForwardBackward,
    OptimizerSettings,
    TrainingExample,
    TrainingService,
)
from ratchet.rollouts.padding import pad_rows
from trainers.algorithms.language.importance import importance_weights
from trainers.language.policy_loss import PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

_TOKENS_AT_ONCE = 2**16
_MEASURED = {
    "ratio": "actor/ratio",
    "kl": "actor/approximate_kl",
    "entropy": "actor/entropy",
    "clip_fraction_low": "actor/clip_fraction_low",
    "clip_fraction_high": "actor/clip_fraction_high",
}


@dataclass(frozen=True)
class ServiceLoss:
    """A loss as the service knows it.

    ``of_sampler`` says that ratios are to the sampler's probabilities; else they are to those of
    the weights before the update.
    """

    name: str
    config: Mapping[str, float]
    of_sampler: bool = False


@dataclass(frozen=True)
class Update:
    """Steps from one model to the next.

    Parameters
    ----------
    examples
        What is learned from, with advantages and the sampler's log-probabilities.
    batches
        Which of them each step follows.
    optimizers
        Of each step.
    loss, policy_loss
        What is followed, and how its tokens are weighed.
    micro_batch_size
        The most examples that are sent at once.

    Raises
    ------
    ParameterError
        If these are more verbs than could be asked for again.
    """

    examples: Sequence[TrainingExample]
    batches: Sequence[Sequence[int]]
    optimizers: Sequence[OptimizerSettings]
    loss: ServiceLoss
    policy_loss: PolicyLoss
    micro_batch_size: int | None = None

    def __post_init__(self) -> None:
        verbs = 1 + sum(1 + len(list(self._parts(self._of(rows)))) for rows in self.batches)
        verbs += len(list(self._parts(self.examples))) if self._needs_old else 0
        if verbs > KEPT_ANSWERS:
            raise ParameterError(
                f"language: an iteration's {len(self.batches)} steps are {verbs} requests, expected"
                f" at most {KEPT_ANSWERS}, which the service can answer again. Take a larger"
                " language.micro_batch_size, larger minibatches, or fewer epochs."
            )

    @property
    def digest(self) -> str:
        """The SHA-256 of all that decides what is sent, in hexadecimal digits."""
        content = {
            "examples": [asdict(example) for example in self.examples],
            "batches": [list(rows) for rows in self.batches],
            "optimizers": [asdict(settings) for settings in self.optimizers],
            "loss": asdict(self.loss),
            "policy_loss": self.policy_loss.given.to_dict(),
            "max_tokens": self.policy_loss.max_tokens,
            "correction": self.policy_loss.correction,
            "micro_batch_size": self.micro_batch_size,
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def take(self, service: TrainingService, name: str) -> tuple[str, dict[str, float]]:
        """Take the steps in a session of their own; return the model that they make, and metrics.

        Verbs are numbered from 0: what was cut off goes on where it was when it is taken again.
        """
        numbers = count()
        old = self._score(service, numbers) if self._needs_old else None
        found: list[dict[str, float]] = []
        for rows, settings in zip(self.batches, self.optimizers, strict=True):
            examples = self._weighted(rows, old)
            passes = [
                service.forward_backward(
                    part,
                    loss=self.loss.name,
                    loss_config=self.loss.config,
                    sequence=next(numbers),
                )
                for part in self._parts(examples)
            ]
            figures = _together(passes)
            if self.loss.name != "ppo":  # of others the service counts what tokens would have
                figures = {name: v for name, v in figures.items() if "clip_fraction" not in name}
            told = [log_probs for one in passes for log_probs in one.log_probs]
            if old is not None:
                told = [old[row] for row in rows]
            if old is not None or not found:
                figures |= _differences(self._of(rows), told)
            done = service.optim_step(settings, sequence=next(numbers))
            figures["actor/grad_norm"] = done["grad_norm"]
            figures["actor/lr"] = settings.learning_rate
            found.append(figures)
        model = service.save_weights(sequence=next(numbers), name=name, optimizer=True)
        names = dict.fromkeys(name for figures in found for name in figures)
        return model, {
            name: fmean(figures[name] for figures in found if name in figures) for name in names
        }

    @property
    def _needs_old(self) -> bool:
        """Whether the weights before the update have to be asked first."""
        several = len(self.batches) > 1 and not self.loss.of_sampler
        return several or self.policy_loss.correction != "none"

    def _of(self, rows: Sequence[int]) -> list[TrainingExample]:
        return [self.examples[row] for row in rows]

    def _parts(self, examples: Sequence[TrainingExample]) -> Iterator[list[TrainingExample]]:
        """Cut examples into what is sent at once."""
        part: list[TrainingExample] = []
        tokens, most = 0, self.micro_batch_size or len(examples)
        for example in examples:
            size = len(example.tokens)
            if part and (len(part) >= most or tokens + size > _TOKENS_AT_ONCE):
                yield part
                part, tokens = [], 0
            part.append(example)
            tokens += size
        yield part

    def _score(self, service: TrainingService, numbers: Iterator[int]) -> list[tuple[float, ...]]:
        """Ask for the log-probabilities before the update."""
        return [
            log_probs
            for part in self._parts(self.examples)
            for log_probs in service.forward(part, sequence=next(numbers)).log_probs
        ]

    def _weighted(
        self, rows: Sequence[int], old: Sequence[tuple[float, ...]] | None
    ) -> list[TrainingExample]:
        """Return a step's examples with what their tokens weigh, and what ratios are to."""
        examples = self._of(rows)
        mask = _rectangle([example.loss_mask for example in examples])
        weight, _ = self.policy_loss.weights(mask)
        level, cap = self.policy_loss.correction, self.policy_loss.given.sampler_cap
        if level != "none" and old is not None:
            before = _rectangle([old[row] for row in rows])
            sampler = _rectangle([example.log_probs or () for example in examples])
            correction = importance_weights(before, sampler, mask, level=level, cap=cap)
            weight = weight * correction.weight
        weights = weight.tolist()
        weighted = []
        for place, (row, example) in enumerate(zip(rows, examples, strict=True)):
            ratio_to = example.log_probs if self.loss.of_sampler else None
            if old is not None and not self.loss.of_sampler:
                ratio_to = old[row]
            own = tuple(weights[place][: len(example.tokens)])
            weighted.append(replace(example, weights=own, log_probs=ratio_to))
        return weighted


def _rectangle(rows: Sequence[Sequence[float]]) -> Tensor:
    return pad_rows(rows, 0.0, dtype=torch.float32)


def _together(passes: Sequence[ForwardBackward]) -> dict[str, float]:
    """Return the loss of a step, and means over its tokens."""
    metrics = [one.metrics for one in passes]
    tokens = max(1.0, sum(each["tokens"] for each in metrics))
    means = {
        told: sum(each[name] * each["tokens"] for each in metrics) / tokens
        for name, told in _MEASURED.items()
        if all(name in each for each in metrics)
    }
    return {"actor/loss": sum(each["loss"] for each in metrics), **means}


def _differences(
    examples: Sequence[TrainingExample], told: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Compare the weights' log-probabilities with the sampler's."""
    sampler, trainer = (
        [
            value
            for example, values in zip(examples, rows, strict=True)
            for value, shown in zip(values, example.loss_mask, strict=True)
            if shown
        ]
        for rows in ([example.log_probs or () for example in examples], told)
    )
    found = log_prob_differences(sampler, trainer)
    return {"actor/sampler_difference": found["mean_abs"], "actor/sampler_kl": found["kl"]}
