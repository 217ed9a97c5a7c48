"""Distributions over one agent's actions [B, K]: independent choices, or normal numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor

from ratchet.agents.categorical import (
    divide,
    plain_categorical_scores,
    record_categorical_scores,
)
from ratchet.agents.tape import Tape, Var
from ratchet.scenarios.gymnasium.networks import ControlAgent
from ratchet.scenarios.gymnasium.spaces import DiscreteActions

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Choice(ABC):
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
        """Sum over choices."""
        return plain_categorical_scores(self.logits, actions, self.sizes)


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
        """Return the means."""
        return self.mean

    def log_prob_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over numbers; entropies do not depend on the frame."""
        deviation = (actions - self.mean) * (-self.log_std).exp()
        spread = self.log_std.sum() + _HALF_LOG_TWO_PI * self.log_std.numel()
        log_prob = -0.5 * deviation.square().sum(-1, keepdim=True) - spread
        entropy = spread + 0.5 * self.log_std.numel()
        return log_prob, entropy.expand(log_prob.shape)


def choice_of(agent: ControlAgent, outputs: Tensor) -> Choice:
    """Return the distribution that a policy's outputs [B, num_outputs] stand for."""
    if isinstance(agent.space.actions, DiscreteActions):
        return Categorical(outputs, agent.space.actions.sizes)
    head = agent.policy_head
    if head is None:
        return Normal(outputs, torch.zeros(outputs.shape[-1], device=outputs.device))
    return Normal(outputs, cast(Tensor, head.log_std))


def record_scores(
    tape: Tape, agent: ControlAgent, outputs: Var, actions: Tensor
) -> tuple[Var, Var]:
    """Do what :meth:`Choice.log_prob_and_entropy` of :func:`choice_of` does, on a tape."""
    if isinstance(agent.space.actions, DiscreteActions):
        return record_categorical_scores(tape, outputs, actions, agent.space.actions.sizes)
    choice = cast(Normal, choice_of(agent, outputs.value))
    log_prob, entropy = choice.log_prob_and_entropy(actions)
    learned = None if agent.policy_head is None else tape.leaf(choice.log_std)
    precision = (-choice.log_std).exp()
    deviation = (actions - choice.mean).mul_(precision)

    def back(of_log_prob: Tensor | None, of_entropy: Tensor | None) -> None:
        if of_log_prob is not None:
            outputs.add_grad(deviation * of_log_prob * precision)
            if learned is not None:
                learned.add_grad(((deviation.square() - 1) * of_log_prob).sum(0))
        if of_entropy is not None and learned is not None:
            learned.add_grad(of_entropy.sum().expand(learned.value.shape))

    results = (Var(log_prob), Var(entropy))
    tape.record(back, *results)
    return results
