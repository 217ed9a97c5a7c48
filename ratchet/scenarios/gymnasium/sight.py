"""What the networks of an agent are shown of a frame: its observation, or everybody's; who it is.

A policy sees its agent's own observation only, so that agents can act apart from each other. A
centralised critic sees all of them: it is needed in training and by nobody who acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ratchet.scenarios.gymnasium.spaces import AgentSpace, AgentSpaces

if TYPE_CHECKING:
    from ratchet.scenarios.gymnasium.parameters import GymnasiumAgentParameters


class Past(NamedTuple):
    """What is remembered before each frame, f32 [*B, M], and whether an episode begins with it.

    *B is B, or e rows of T steps.
    """

    memory: Tensor
    begins: Tensor


class Seen(NamedTuple):
    """What an agent's policy and critic are shown of B frames: f32 [B, d] each; and the past."""

    policy: Tensor
    critic: Tensor
    past: Past | None = None


@dataclass(frozen=True)
class Sight:
    """What one network is shown: whose observations, and then a number for each agent it may be.

    Attributes
    ----------
    places
        Where they are among the agents.
    spaces
        Theirs.
    identity
        Which of how many agents is told; None if that is not.
    """

    places: tuple[int, ...]
    spaces: tuple[AgentSpace, ...]
    identity: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """The number of numbers."""
        told = 0 if self.identity is None else self.identity[1]
        return sum(space.observation_size for space in self.spaces) + told

    def show(self, observation: Tensor) -> Tensor:
        """Take out of observations f32 [B, A, D] what is seen: [B, size]."""
        shown = [
            observation[:, place, : space.observation_size]
            for place, space in zip(self.places, self.spaces, strict=True)
        ]
        if self.identity is not None:
            who, count = self.identity
            told = observation.new_zeros(len(observation), count)
            told[:, who] = 1
            shown.append(told)
        return shown[0] if len(shown) == 1 else torch.cat(shown, -1)


class Sights(NamedTuple):
    """Those of an agent's two networks."""

    policy: Sight
    critic: Sight

    def show(self, observation: Tensor) -> Seen:
        """Take out of observations f32 [B, A, D] what the agent's networks see."""
        own = self.policy.show(observation)
        same = self.policy is self.critic
        return Seen(own, own if same else self.critic.show(observation))


def agent_sights(
    spaces: AgentSpaces, sections: Mapping[str, GymnasiumAgentParameters]
) -> dict[str, Sights]:
    """Return what each agent's networks are shown."""
    everybody = tuple(range(len(spaces.names))), tuple(spaces.by_name.values())
    found = {}
    for place, (name, space) in enumerate(spaces.by_name.items()):
        section = sections[name]
        identity = (place, len(spaces.names)) if section.observes_agent_id else None
        own = Sight((place,), (space,), identity)
        found[name] = Sights(
            own, Sight(*everybody, identity) if section.centralised_critic else own
        )
    return found
