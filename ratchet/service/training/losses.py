"""Losses of fine-tuning jobs, and optimizer steps over micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.algorithms.language.losses import preference_loss
from ratchet.language_models.local.model import LanguageModel
from ratchet.models.optimizers import ScheduledAdam
from ratchet.models.supervision import TokenSequence, pad
from ratchet.service.training.tokens import Preference

_REFERENCE_BATCH = 64


class Loss(Protocol):
    """The loss of a job's method on its examples, given by their indices."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def tokens(self) -> int:
        """Return the number of tokens read in an epoch."""
        ...

    def weight(self, indices: list[int]) -> int:
        """Return the number of values that the loss of these examples averages."""
        ...

    def __call__(
        self, indices: list[int], of: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch, or its share in that of the batch ``of``; and metrics."""
        ...


class PreferenceLoss:
    """DPO with supervision: −log σ(β·margin) + α·NLL(preferred), a :class:`Loss` of pairs.

    The margin is the log-ratio of the preferred response minus that of the other (Rafailov et al.
    2023, eq. 7). Preferences alone do not constrain what both responses have in common, and a small
    model drifts within a few steps until its replies can't be parsed. So the likelihood of the
    preferred response can be raised as well (iterative reasoning preference optimisation, Pang et
    al. 2024, eq. 2). Then the token that ends a message counts only there: lowering its probability
    after the worse response would teach the model not to stop.

    Parameters
    ----------
    model
        The model to train. In its current state it is the reference as well: the reference's
        log-probabilities are computed here, once.
    beta
        β: strength of the pull towards the reference.
    supervision
        α: weight of the mean negative log-likelihood per token of the preferred responses; 0 for
        DPO alone, in which the end tokens count.
    reading
        Number of pairs in a batch of the reference.
    """

    def __init__(
        self,
        model: LanguageModel,
        pairs: Sequence[Preference],
        beta: float,
        *,
        supervision: float,
        reading: int = _REFERENCE_BATCH,
    ) -> None:
        self._model = model
        self._pairs = pairs
        self._beta = beta
        ends = model.end_ids if supervision else ()
        self._uncompared = torch.tensor(ends, dtype=torch.int64, device=model.device)
        self._sides = torch.tensor([1.0, -1.0], device=model.device)
        self._supervision = supervision
        size = min(reading, _REFERENCE_BATCH)
        with torch.no_grad():
            parts = [
                self._log_probs(pairs[start : start + size])[0]
                for start in range(0, len(pairs), size)
            ]
        self._reference = torch.cat(parts)  # float32[N, 2]

    def __len__(self) -> int:
        return len(self._pairs)

    def tokens(self) -> int:
        """Return the number of tokens read in an epoch."""
        return sum(len(p.preferred.ids) + len(p.non_preferred.ids) for p in self._pairs)

    def weight(self, indices: Sequence[int]) -> int:
        """Return the number of pairs."""
        return len(indices)

    def __call__(
        self, indices: Sequence[int], of: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the loss; metrics are the share of pairs in the right order and the margin."""
        log_probs, likelihood = self._log_probs([self._pairs[index] for index in indices])
        margins = (log_probs - self._reference[list(indices)]) @ self._sides
        metrics = {
            "reward_accuracy": float((margins > 0).float().mean()),
            "reward_margin": self._beta * float(margins.detach().mean()),
        }
        preference = preference_loss(self._beta * margins).mean()
        if of is not None:
            preference = preference * (len(indices) / len(of))
            likelihood = likelihood * (self._preferred_tokens(indices) / self._preferred_tokens(of))
        return preference - self._supervision * likelihood, metrics

    def _preferred_tokens(self, indices: Sequence[int]) -> int:
        return sum(sum(w > 0 for w in self._pairs[i].preferred.weights[1:]) for i in indices)

    def _log_probs(self, pairs: Sequence[Preference]) -> tuple[Tensor, Tensor]:
        """Compute the log-probabilities of both responses, and the mean of the preferred tokens.

        float32[B, 2] and float32[].
        """
        both: list[TokenSequence] = [pair.preferred for pair in pairs]
        both += [pair.non_preferred for pair in pairs]
        ids, weights = pad(both)
        chosen = weights[:, 1:] > 0
        following = ids[:, 1:][chosen].to(self._model.device)
        (scores,) = self._model.map_logits(_token_log_probs, ids[:, :-1], chosen, following)
        rows = chosen.nonzero()[:, 0].to(scores.device)
        compared = scores * ~torch.isin(following, self._uncompared)
        sums = torch.zeros(len(both), device=scores.device).index_add(0, rows, compared)
        return sums.view(2, len(pairs)).T, scores[rows < len(pairs)].mean()


def _token_log_probs(logits: Tensor, tokens: Tensor) -> tuple[Tensor]:
    return (-F.cross_entropy(logits, tokens, reduction="none"),)


def follow(
    adam: ScheduledAdam,
    parameters: Sequence[torch.nn.Parameter],
    loss: Loss,
    batch: list[int],
    size: int,
) -> tuple[float, dict[str, float]]:
    """Make one step along the gradient of a batch's loss, with ``size`` examples in memory.

    Returns the loss and the mean of each metric. However a batch is split, the step is the same up
    to rounding; unsplit, bit for bit.
    """
    if size >= len(batch):
        value, metrics = loss(batch)
        return adam.step(value), metrics
    total, means = 0.0, dict[str, float]()
    gradients = [torch.zeros_like(parameter) for parameter in parameters]
    for start in range(0, len(batch), size):
        indices = batch[start : start + size]
        part, metrics = loss(indices, of=batch)
        part_gradients = torch.autograd.grad(part, parameters, materialize_grads=True)
        for gradient, more in zip(gradients, part_gradients, strict=True):
            gradient += more
        total += float(part.detach())
        for name, metric in metrics.items():
            means[name] = means.get(name, 0.0) + metric * len(indices) / len(batch)
    adam.follow(gradients)
    return total, means
