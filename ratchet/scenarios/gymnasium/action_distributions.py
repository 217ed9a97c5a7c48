"""Distributions over one agent's actions [B, K]: independent choices, or normal numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from ratchet.scenarios.gymnasium.networks import ControlAgent
from ratchet.scenarios.gymnasium.spaces import DiscreteActions

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class ActionDistribution(ABC):
    """What an agent may do in B frames, and how likely it is."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions [B, K], without gradients."""

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the likeliest actions [B, K]."""

    @abstractmethod
    def log_prob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (densities) of actions [B, K], and entropies: [B, 1] each."""


class DiscreteActionDistribution(ActionDistribution):
    """Independent choices, one after the other in the logits f32 [B, Σ sizes]."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...]) -> None:
        self.logits = logits
        self.sizes = sizes

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw by the exponential race."""
        drawn = [
            (factor - torch.empty_like(factor).exponential_(generator=generator).log_()).argmax(
                -1, keepdim=True
            )
            for factor in divide(self.logits, self.sizes)
        ]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn, -1)

    def mode(self) -> Tensor:
        """Return the likeliest."""
        return torch.stack([f.argmax(-1) for f in divide(self.logits, self.sizes)], -1)

    def log_prob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return sums over choices."""
        return categorical_scores(self.logits, actions, self.sizes)


class ContinuousActionDistribution(ActionDistribution):
    """Independent normal numbers; what lies outside the bounds is moved there by the environment.

    Means are f32 [B, K], log deviations f32 [K].
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return torch.addcmul(self.mean, noise, self.log_std.exp())

    def mode(self) -> Tensor:
        """Return the means."""
        return self.mean

    def log_prob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return sums over numbers; entropies do not depend on the frame."""
        deviation = (actions - self.mean) * (-self.log_std).exp()
        spread = self.log_std.sum() + _HALF_LOG_TWO_PI * self.log_std.numel()
        log_prob = -0.5 * deviation.square().sum(-1, keepdim=True) - spread
        entropy = spread + 0.5 * self.log_std.numel()
        return log_prob, entropy.expand(log_prob.shape)


def distribution_of(agent: ControlAgent, outputs: Tensor) -> ActionDistribution:
    """Return the distribution that a policy's outputs [B, num_outputs] stand for."""
    if isinstance(agent.space.actions, DiscreteActions):
        return DiscreteActionDistribution(outputs, agent.space.actions.sizes)
    head = agent.policy_head
    if head is None:
        return ContinuousActionDistribution(
            outputs, torch.zeros(outputs.shape[-1], device=outputs.device)
        )
    return ContinuousActionDistribution(outputs, cast(Tensor, head.log_std))


def categorical_scores(
    logits: Tensor, actions: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of choices and their entropies (nats), summed: f32 [B, 1] each.

    Logits are f32 [B, Σ sizes], actions i64 [B, K]; a size is a choice's number of outcomes.
    """
    chosen, entropies = [], []
    for index, factor in enumerate(divide(logits, sizes)):
        log_probs = torch.log_softmax(factor, -1)
        chosen.append(log_probs.gather(-1, actions[:, index : index + 1]))
        entropies.append(-(log_probs.exp() * log_probs).sum(-1, keepdim=True))
    return total(chosen), total(entropies)


def divide(logits: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Return the logits of each choice."""
    return (logits,) if len(sizes) == 1 else torch.split(logits, list(sizes), dim=-1)


def total(columns: Sequence[Tensor]) -> Tensor:
    """Sum [B, 1] each over choices: [B, 1]."""
    return columns[0] if len(columns) == 1 else torch.cat(list(columns), -1).sum(-1, keepdim=True)
