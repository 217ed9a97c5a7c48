"""What a text environment's values look like."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.specs import (
    NO_DECISION,
    NOBODY,
    BoolArraySpec,
    CompositeSpec,
    FloatArraySpec,
    IntArraySpec,
    StringArraySpec,
)


@dataclass(frozen=True)
class TextEnvironmentSpecs:
    """Specs of an environment; its batch size is open, since ``reset`` takes any number."""

    num_rounds: int
    num_agents: int
    num_channels: int

    @cached_property
    def observation(self) -> CompositeSpec:
        """What agents see, each its own part of it."""
        return CompositeSpec(
            {
                "question": StringArraySpec(),
                "solution": StringArraySpec(),
                **self._history,
                "round": IntArraySpec(low=0, high=self.num_rounds - 1),
                "seed": IntArraySpec(),
                "prover_stance": IntArraySpec(nothing=1, low=0, high=1),
                "datapoint_id": IntArraySpec(),
            }
        )

    @cached_property
    def state(self) -> CompositeSpec:
        """What belongs to the state and no agent sees."""
        return CompositeSpec({"y": IntArraySpec(low=0, high=1)})

    @cached_property
    def action(self) -> CompositeSpec:
        """What agents do."""
        agents = (self.num_agents,)
        return CompositeSpec(
            {
                "agents": {
                    "message": StringArraySpec((self.num_agents, self.num_channels)),
                    "raw_message": StringArraySpec(agents),
                    "decision": IntArraySpec(agents, nothing=NO_DECISION, low=0, high=NO_DECISION),
                }
            }
        )

    @cached_property
    def reward(self) -> CompositeSpec:
        """What agents are paid."""
        return CompositeSpec({"agents": {"reward": FloatArraySpec((self.num_agents,))}})

    @cached_property
    def done(self) -> CompositeSpec:
        """Whether the episode, and each agent in it, has come to an end."""
        return CompositeSpec(
            {
                "done": BoolArraySpec(),
                "terminated": BoolArraySpec(),
                "agents": {"done": BoolArraySpec((self.num_agents,))},
            }
        )

    def blank_state(self, size: int) -> NestedArrayDict:
        """Make states [size] in which nothing was said yet."""
        blank = NestedArrayDict({}, size)
        for spec in (self.observation, self.state, self.done):
            blank.update(spec.blank(size))
        return blank

    @property
    def _history(self) -> dict[str, StringArraySpec | IntArraySpec]:
        channels = (self.num_rounds, self.num_channels)
        return {
            "message_history": StringArraySpec(channels),
            "message_agent_id": IntArraySpec(
                channels, nothing=NOBODY, low=NOBODY, high=self.num_agents - 1
            ),
            "raw_message_history": StringArraySpec((self.num_rounds, self.num_agents)),
        }
