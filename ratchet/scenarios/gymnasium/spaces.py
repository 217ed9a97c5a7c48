"""What an agent observes and does in an environment, in plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ratchet.errors import ParameterError


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

    What an agent chooses outside is moved to the bound before it is done.
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
    """One agent's observations, of so many numbers, and its actions."""

    observation_size: int
    actions: Actions


@dataclass(frozen=True)
class AgentSpaces:
    """All agents' spaces, in the order of every agent dimension.

    Observations f32 [E, A, D] and actions [E, A, K] are as wide as the widest agent's; what an
    agent does not have is zero and read by nobody.
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
    def action_width(self) -> int:
        """K."""
        return max(space.actions.num_factors for space in self.by_name.values())

    @cached_property
    def all_discrete(self) -> bool:
        """Whether actions are int64; f32 as soon as one agent's are continuous."""
        return all(isinstance(s.actions, DiscreteActions) for s in self.by_name.values())
