"""``Dynamics``: base class of batched environments on tensors.

Pure tensor operations over E parallel episodes; the caller counts steps, applies time limits and
restarts episodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from ratchet.scenarios.gymnasium.spaces import AgentSpace
from ratchet.scenarios.gymnasium.turns import Turn

State = dict[str, Tensor]
"""State of episodes: any tensors [E, ...] by name."""


class Transition(NamedTuple):
    """Result of a step: the next state, rewards f32 [E, A], and ends bool [E].

    ``terminated`` marks episodes that ended for a reason other than a time limit.
    """

    state: State
    reward: Tensor
    terminated: Tensor


class Dynamics(ABC):
    """A Markov decision process of one agent or several; E episodes, A agents.

    ``gymnasium.environment_kwargs`` of an experiment are the keyword arguments of ``__init__``.
    """

    max_episode_steps: int | None = None
    """After how many steps episodes are cut off; None for never."""

    @property
    @abstractmethod
    def agents(self) -> dict[str, AgentSpace]:
        """The agents' observations and actions, in the order of agent dimensions."""

    @abstractmethod
    def first_state(self, seeds: Tensor) -> State:
        """Start episodes that depend only on seeds int64 [E]."""

    @abstractmethod
    def observe(self, state: State) -> Tensor:
        """Show a state: f32 [E, A, D], D the largest observation's size; bytes of images."""

    def turn(self, state: State) -> Turn | None:
        """Return the next acting agents and their actions; None: all agents, with all actions.

        None either in all states or in none. :meth:`step` must ignore the actions of agents that
        do not act.
        """
        return None

    @abstractmethod
    def step(self, state: State, actions: Tensor) -> Transition:
        """Apply the agents' actions; the given state of E episodes is not modified.

        Actions are [E, A, K]: int64, or f32 within the bounds if any agent's are continuous.
        """


def uniform(seeds: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Sample from a box like gymnasium's environments after ``reset(seed)``: f64 [E, n].

    For seeds int64 [E] and bounds f64 [n]; equal to ``np_random.uniform(low, high)`` bit for bit.
    """
    import numpy as np

    generators = [np.random.Generator(np.random.PCG64(seed)) for seed in seeds.tolist()]
    drawn = torch.from_numpy(np.stack([generator.random(len(low)) for generator in generators]))
    return (low + (high - low) * drawn).to(seeds.device)
