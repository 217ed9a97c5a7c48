"""Distributions over one agent's actions [B, K]: independent choices, or normal numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor

from ratchet.agents.categorical import categorical_scores
from ratchet.scenarios.gymnasium.networks import ControlAgent
from ratchet.scenarios.gymnasium.spaces import DiscreteActions


class Choice(ABC):
    """What an agent may do in B frames, and how likely it is."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions [B, K], without gradients."""

    @abstractmethod
    def mode(self) -> Tensor:
        """Give the likeliest actions [B, K]."""

    @abstractmethod
    def log_prob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Give the log-probabilities (densities) of actions [B, K], and entropies: [B, 1] each."""


class Categorical(Choice):
    """Independent choices, one after the other in the logits.

    Parameters
    ----------
    logits
        f32 [B, Σ sizes].
    sizes
        Of each choice.
    """

    def __init__(self, logits: Tensor, sizes: tuple[int, ...]) -> None:
        self.factors = (logits,) if len(sizes) == 1 else torch.split(logits, list(sizes), dim=-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw by the exponential race."""
        drawn = [
            (factor - torch.empty_like(factor).exponential_(generator=generator).log_()).argmax(
                -1, keepdim=True
            )
            for factor in self.factors
        ]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn, -1)

    def mode(self) -> Tensor:
        """Give the likeliest."""
        return torch.stack([factor.argmax(-1) for factor in self.factors], -1)

    def log_prob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over choices."""
        if len(self.factors) == 1:
            return categorical_scores(self.factors[0], actions)
        scores = [
            categorical_scores(factor, actions[:, index : index + 1])
            for index, factor in enumerate(self.factors)
        ]
        log_probs, entropies = zip(*scores, strict=True)
        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)


class Normal(Choice):
    """Independent normal numbers; what lies outside the bounds is moved there by the environment.

    Parameters
    ----------
    mean
        f32 [B, K].
    log_std
        f32 [K].
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return torch.addcmul(self.mean, noise, self.log_std.exp())

    def mode(self) -> Tensor:
        """Give the means."""
        return self.mean

    def log_prob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over numbers; entropies do not depend on the frame."""
        deviation = (actions - self.mean) * (-self.log_std).exp()
        spread = self.log_std.sum() + 0.5 * math.log(2 * math.pi) * self.log_std.numel()
        log_prob = -0.5 * deviation.square().sum(-1, keepdim=True) - spread
        entropy = spread + 0.5 * self.log_std.numel()
        return log_prob, entropy.expand(log_prob.shape)


def choice_of(agent: ControlAgent, outputs: Tensor) -> Choice:
    """Give the distribution that a policy's outputs [B, num_outputs] stand for."""
    if isinstance(agent.space.actions, DiscreteActions):
        return Categorical(outputs, agent.space.actions.sizes)
    head = agent.policy_head
    if head is None:
        return Normal(outputs, torch.zeros(outputs.shape[-1], device=outputs.device))
    return Normal(outputs, cast(Tensor, head.log_std))
