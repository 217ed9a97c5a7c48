"""Token weights and metrics of a remote trainer's updates.

Shape letters: B rows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from ratchet.algorithms.language.token_weights import importance_weights
from ratchet.language_models.engines.rollouts import log_prob_differences
from ratchet.rollouts.padding import pad_rows
from trainers.language.policy_loss import PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.language_models.training_service.interface import (
        ForwardBackward,
        TrainingExample,
    )
    from ratchet.language_models.training_service.steps import (
        CompletedStep,
        LogProbs,
        TrainingSteps,
    )

_MEASURED = {
    "ratio": "actor/ratio",
    "kl": "actor/approximate_kl",
    "entropy": "actor/entropy",
    "clip_fraction_low": "actor/clip_fraction_low",
    "clip_fraction_high": "actor/clip_fraction_high",
}


@dataclass(frozen=True)
class PolicyWeighing:
    """Weights of tokens in a policy loss.

    ``asks_old``: the service requires old log-probabilities even if all ratios are 1.
    """

    policy_loss: PolicyLoss
    asks_old: bool = False

    @property
    def reads_scores(self) -> bool:
        """Whether weights depend on current log-probabilities, or the service requires them."""
        return self.asks_old or self.policy_loss.correction != "none"

    @property
    def content(self) -> Mapping[str, object]:
        """All inputs that determine the weights."""
        parameters, correction = self.policy_loss.parameters, self.policy_loss.correction
        return {
            "aggregation": parameters.aggregation,
            "constant": self.policy_loss.constant if parameters.aggregation == "constant" else None,
            "correction": correction,
            "sampler_cap": parameters.sampler_cap if correction != "none" else None,
        }

    def __call__(
        self, examples: Sequence[TrainingExample], before: LogProbs | None
    ) -> list[tuple[float, ...]]:
        """Return the weights of a step's tokens."""
        mask = _rectangle([example.loss_mask for example in examples])
        weight, _ = self.policy_loss.weights(mask)
        level, cap = self.policy_loss.correction, self.policy_loss.parameters.sampler_cap
        if level != "none" and before is not None:
            sampler = _rectangle([example.log_probs or () for example in examples])
            correction = importance_weights(_rectangle(before), sampler, mask, level=level, cap=cap)
            weight = weight * correction.weight
        return [
            tuple(row[: len(example.tokens)])
            for row, example in zip(weight.tolist(), examples, strict=True)
        ]


def update_metrics(steps: TrainingSteps, completed: Sequence[CompletedStep]) -> dict[str, float]:
    """Return means of the steps' metrics."""
    step_figures: list[dict[str, float]] = []
    for step, settings in zip(completed, steps.optimizers, strict=True):
        figures = _together(step.passes)
        if steps.loss.name != "ppo":  # for others the service reports hypothetical fractions
            figures = {name: v for name, v in figures.items() if "clip_fraction" not in name}
        if steps.asks_first or not step_figures:
            figures |= _differences(step.examples, step.log_probs)
        if not math.isnan(step.grad_norm):  # not every service reports it
            figures["actor/grad_norm"] = step.grad_norm
        figures["actor/lr"] = settings.learning_rate
        step_figures.append(figures)
    names = dict.fromkeys(name for figures in step_figures for name in figures)
    return {
        name: fmean(figures[name] for figures in step_figures if name in figures) for name in names
    }


def _rectangle(rows: Sequence[Sequence[float]]) -> Tensor:
    return pad_rows(rows, 0.0, dtype=torch.float32)


def _together(passes: Sequence[ForwardBackward]) -> dict[str, float]:
    """Return the loss of a step, and means over its tokens."""
    metrics = [one.metrics for one in passes]
    tokens = max(1.0, sum(each["tokens"] for each in metrics))
    means = {
        label: sum(each[name] * each["tokens"] for each in metrics) / tokens
        for name, label in _MEASURED.items()
        if all(name in each for each in metrics)
    }
    if not all("loss" in each for each in metrics):  # not every service reports it
        return means
    return {"actor/loss": sum(each["loss"] for each in metrics), **means}


def _differences(examples: Sequence[TrainingExample], log_probs: LogProbs) -> dict[str, float]:
    """Compare the weights' log-probabilities with the sampler's."""
    sampler, trainer = (
        [
            value
            for example, values in zip(examples, rows, strict=True)
            for value, is_trained in zip(values, example.loss_mask, strict=True)
            if is_trained
        ]
        for rows in ([example.log_probs or () for example in examples], log_probs)
    )
    differences = log_prob_differences(sampler, trainer)
    return {
        "actor/sampler_difference": differences["mean_abs"],
        "actor/sampler_kl": differences["kl"],
    }
