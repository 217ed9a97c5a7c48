"""Growing of a tree of rollouts on one datapoint: several replies at each step.

Node indices are those of a full tree: the root is 0, the children of p are p·k + 1 … p·k + k.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ratchet.rollouts.concatenation import concatenate_nested_array_dicts
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.playing import begin_episode
from ratchet.scenarios.pure_text.rollout import episode_to_rollout, play_step

if TYPE_CHECKING:
    from ratchet.scenarios.pure_text.agents.whole_agent import CallContext
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment
    from ratchet.scenarios.pure_text.episode import Episode
    from ratchet.scenarios.pure_text.rollout import TextActor
    from trainers.text.plans import PlannedRollout


def nodes_per_tree(num_responses: int, num_rounds: int) -> int:
    """Return the number of nodes of a full tree without the root: k + k² + … + k^rounds."""
    return sum(num_responses**depth for depth in range(1, num_rounds + 1))


@dataclass(frozen=True)
class TreeGrower:
    """Grows trees.

    ``num_responses`` is k, the number of replies of the acting agents at each step; ``slots``
    bounds the number of concurrent steps.
    """

    environment: PureTextEnvironment
    agents: Mapping[str, TextActor]
    context: CallContext
    num_responses: int
    slots: asyncio.Semaphore

    async def grow(self, planned: PlannedRollout, first_node: int) -> NestedArrayDict:
        """Grow the tree of one datapoint; return its leaves, batch [at most k^rounds].

        The leaves are ordered from the first branch to the last. All branches have the planned
        seed. ``first_node`` is the id of the node at index 1; others follow by index.
        """
        root = begin_episode(
            self.environment, planned.datapoint_id, planned.seed, planned.rollout_id
        )
        leaves = await self._leaves(root, 0, first_node)
        return concatenate_nested_array_dicts(
            [episode_to_rollout(self.environment, leaf) for leaf in leaves]
        )

    async def _leaves(self, episode: Episode, place: int, first_node: int) -> list[Episode]:
        if episode.done:
            return [episode]
        children = await asyncio.gather(
            *(
                self._grow_child(episode, place * self.num_responses + answer, first_node)
                for answer in range(1, self.num_responses + 1)
            ),
            return_exceptions=True,  # completed calls of the others are billed
        )
        leaves: list[Episode] = []
        for child in children:
            if isinstance(child, BaseException):
                raise child
            leaves += child
        return leaves

    async def _grow_child(self, episode: Episode, place: int, first_node: int) -> list[Episode]:
        """Execute one step and all its descendants."""
        context = replace(self.context, call_prefix=f"r{episode.rollout_id}/n{place}")
        async with self.slots:
            child = await play_step(
                self.environment, self.agents, episode, context, node_id=first_node + place - 1
            )
        return await self._leaves(child, place, first_node)
