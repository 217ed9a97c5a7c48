"""Data of a minibatch of complete episodes for opponent shaping, apart from the policies.

Shape letters: e environments, T steps, A agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ratchet.algorithms.sampled_game import (
    Loss,
    Player,
    SampledGame,
    clipped_slope,
    policy_slope,
)


@dataclass(frozen=True)
class ShapingBatch:
    """All agents' advantages for all agents' actions in some episodes.

    Attributes
    ----------
    advantage
        f32 [e, T, A], 0 where unknown.
    learned
        bool [e, T, A]: the frames that are learned from.
    acting
        bool [e, T, A].
    old_log_prob
        f32 [e, T, A], at the time of sampling.
    episode
        i64 [e, T]: the index of the frame's episode in its row.
    """

    advantage: Tensor
    learned: Tensor
    acting: Tensor
    old_log_prob: Tensor
    episode: Tensor

    def take(self, rows: Tensor) -> ShapingBatch:
        """Return the part of some environments, i64 [k]."""
        return ShapingBatch(
            **{field.name: getattr(self, field.name)[rows] for field in fields(self)}
        )

    def game(
        self,
        players: Mapping[str, Player],
        places: Mapping[str, int],
        clip_epsilon: float | None,
    ) -> SampledGame:
        """Build the game of some players with their current policies.

        ``places`` maps all agents to indices in agent dimensions; ``clip_epsilon`` is ε of PPO's
        clipped loss, None for the plain policy gradient.
        """
        count = self.learned.sum((0, 1)).clamp(min=1)
        weight = -self.advantage / count

        def slope(loss: str, agent: str) -> Tensor:
            acting = self.acting[..., places[agent]]
            if clip_epsilon is None:
                return policy_slope(acting, weight)
            return clipped_slope(
                players[agent].log_prob.detach() - self.old_log_prob[..., places[agent]],
                self.advantage[..., places[loss]],
                acting,
                clip_epsilon=clip_epsilon,
            )

        losses = {
            name: Loss(weight[..., places[name]], {other: slope(name, other) for other in players})
            for name in players
        }
        return SampledGame(players, losses, self.episode)

    def rows_with(self, agents: Sequence[int], share: int) -> Tensor:
        """Choose one in ``share`` environments, first those in which some of the agents act."""
        acts = self.acting[..., list(agents)].flatten(1).any(1)
        order = torch.argsort(acts.to(torch.int8), descending=True, stable=True)
        return order[: -(-len(order) // share)]
