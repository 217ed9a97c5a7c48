"""Spaces of agents' observations and actions, in plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from ratchet.errors import ParameterError

_SMALLEST_SIDE = 8


@dataclass(frozen=True)
class DiscreteActions:
    """Independent choices, each with its number of outcomes; (n,) for a single one."""

    sizes: tuple[int, ...]

    @property
    def num_factors(self) -> int:
        """The length of an action."""
        return len(self.sizes)


@dataclass(frozen=True)
class ContinuousActions:
    """Real numbers within bounds, of which some may be infinite.

    Actions outside are clamped to the bounds.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def num_factors(self) -> int:
        """The length of an action."""
        return len(self.low)


Actions = DiscreteActions | ContinuousActions


@dataclass(frozen=True)
class AgentSpace:
    """One agent's observations, of ``size`` numbers, and its actions.

    ``shape`` is that of an observation before it was flattened, of several dimensions; None
    otherwise. ``is_bytes`` marks numbers that are integers from 0 to 255.
    """

    observation_size: int
    actions: Actions
    shape: tuple[int, ...] | None = None
    is_bytes: bool = False

    @property
    def is_image(self) -> bool:
        """Whether observations are pixels: bytes in two dimensions or more, of some size."""
        if self.shape is None or not self.is_bytes:
            return False
        return len(self.shape) <= 4 and sorted(self.shape)[-2] >= _SMALLEST_SIDE


@dataclass(frozen=True)
class AgentSpaces:
    """All agents' spaces, in the order of every agent dimension.

    Observations [E, A, D], f32 or bytes, and actions [E, A, K] are as wide as the widest agent's;
    padding is zero and never read.
    """

    by_name: dict[str, AgentSpace]

    def __post_init__(self) -> None:
        if not self.by_name:
            raise ParameterError("an environment has no agents, expected at least one.")

    @property
    def names(self) -> tuple[str, ...]:
        """The agents."""
        return tuple(self.by_name)

    @cached_property
    def observation_width(self) -> int:
        """D."""
        return max(space.observation_size for space in self.by_name.values())

    @cached_property
    def observation_dtype(self) -> torch.dtype:
        """Bytes where all agents see images of them; else f32."""
        images = all(space.is_image for space in self.by_name.values())
        return torch.uint8 if images else torch.float32

    @cached_property
    def action_width(self) -> int:
        """K."""
        return max(space.actions.num_factors for space in self.by_name.values())

    @cached_property
    def all_discrete(self) -> bool:
        """Whether actions are int64; f32 as soon as one agent's are continuous."""
        return all(isinstance(s.actions, DiscreteActions) for s in self.by_name.values())
