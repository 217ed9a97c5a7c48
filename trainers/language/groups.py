"""What GRPO is wherever its model is: answers to one task are compared with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.algorithms.language.group_advantages import GroupAdvantages, group_advantages
from ratchet.parameters.language import GrpoParameters
from trainers.language.base import BaseTrainer

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.rollouts.trajectory import Trajectory


class ComparesGroups(BaseTrainer):
    """Reads the section ``grpo``, says which groups are kept, and compares answers.

    See :class:`ratchet.parameters.language.GrpoParameters`. To be put before a base that has a
    model.
    """

    section: ClassVar[str] = "grpo"

    def _read_loss(self) -> GrpoParameters:
        self._grpo = self._parameters(GrpoParameters, "grpo").settled
        self._averages: dict[str, float] = {}
        return self._grpo

    @property
    def max_resamples(self) -> int:
        """How many times further tasks may be played in place of groups that are all alike."""
        return self._grpo.max_resamples if self._grpo.dynamic_sampling else 0

    def keeps_group(self, group: Sequence[Trajectory]) -> bool:
        """Return whether anything is learned from a group; all are kept unless resampled."""
        return not self._grpo.dynamic_sampling or len({one.reward for one in group}) > 1

    def _compare(
        self,
        scores: Tensor,
        group_ids: Sequence[str],
        *,
        runs: Sequence[str],
        agents: Sequence[str],
        counts: Tensor,
    ) -> GroupAdvantages:
        """Compute advantages, as of :func:`group_advantages`; agents' averages go on."""
        given = self._grpo
        assert given.baseline is not None  # settled
        assert given.advantage_scale is not None
        of_batch = given.baseline == "batch_mean"
        found = group_advantages(
            scores,
            [""] * len(group_ids) if of_batch else group_ids,
            runs=runs,
            agents=agents,
            counts=counts,
            baseline="mean" if given.baseline == "batch_mean" else given.baseline,
            scale=given.advantage_scale,
            agent_averages=self._averages,
            decay=given.baseline_decay,
        )
        self._averages = found.agent_averages
        return found

    def take_state(self) -> dict[str, Any]:
        """Return the agents' averages too."""
        return {**super().take_state(), "averages": dict(self._averages)}

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`take_state` returned."""
        super().put_state(state)
        self._averages = dict(state["averages"])
