"""Advantages of every agent in every step, for trainers with opponent shaping."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.algorithms.joint_advantages import joint_advantages, known_consequences
from trainers.tensordict.objectives.value_estimators import (
    Key,
    MaskedGae,
    acting_mask,
    episode_ends,
)

JOINT_ADVANTAGE: Key = ("agents", "joint_advantage")
JOINT_KNOWN: Key = ("agents", "joint_known")
EPISODE: Key = "episode"


class JointAdvantageEstimator(MaskedGae):
    """Adds estimates for other agents' actions to the usual ones, and numbers the episodes."""

    @torch.no_grad()
    def forward(self, rollouts: TensorDictBase, **unused: object) -> TensorDictBase:
        """Add three entries to rollouts ``[E, T]`` in addition to those of the base class.

        ``joint_advantage`` and ``joint_known`` under ``agents``, ``[E, T, A]``: see
        :func:`ratchet.algorithms.joint_advantages.joint_advantages`; ``episode``, int64
        ``[E, T]``: which of its row's episodes a frame belongs to.
        """
        acting, value = acting_mask(rollouts), rollouts.get(self.keys["value"])
        rollouts = super().forward(rollouts)
        ends = episode_ends(rollouts, value.shape[-1])
        reward = rollouts.get(("next", "agents", "reward"))
        known = self._known(rollouts, acting, ends)
        episode, step = number_episodes(rollouts)
        estimate = joint_advantages(
            reward,
            value,
            rollouts.get(self.keys["value_target"]),
            acting,
            known,
            ends,
            step=step,
            gamma=self.gamma,
        )
        rollouts.set(JOINT_ADVANTAGE, estimate.advantage)
        rollouts.set(JOINT_KNOWN, estimate.known)
        rollouts.set(EPISODE, episode)
        return rollouts

    def _known(self, rollouts: TensorDictBase, acting: Tensor, ends: Tensor) -> Tensor:
        """Return where returns are reliable; nowhere after an agent is done."""
        truncated = rollouts.get(("next", "agents", "truncated"), torch.zeros_like(ends))
        cut = ends & truncated
        cut[:, -1] |= ~ends[:, -1]
        final_known = rollouts.get(("next", "agents", "value_known"), torch.zeros_like(ends))
        learns = rollouts.get(self.keys["learns"])
        known = known_consequences(learns, acting, ends & ~truncated, cut, final_known)
        over: Tensor | None = rollouts.get(("agents", "done"), None)
        return known if over is None else known & ~over


def number_episodes(rollouts: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Number the episodes of each row of ``[E, T]``, and the steps of each episode, from 0."""
    ends = (rollouts.get(("next", "done")) | rollouts.get(("next", "terminated"))).to(torch.int64)
    episode = ends.cumsum(1) - ends
    steps = torch.arange(ends.shape[1], device=ends.device).expand_as(ends)
    first = torch.ones_like(ends, dtype=torch.bool)
    first[:, 1:] = episode[:, 1:] != episode[:, :-1]
    start = torch.where(first, steps, 0).cummax(1).values
    return episode, steps - start
