"""Group-relative advantages, shared by local and remote GRPO trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.algorithms.language.group_advantages import GroupAdvantages, group_advantages
from ratchet.algorithms.replayed_credit import check_redraws
from ratchet.errors import ParameterError
from ratchet.parameters.language import GrpoParameters
from trainers.language.agents import shared_models
from trainers.language.base import BaseTrainer

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters


class GroupRelativeMixin(BaseTrainer):
    """Reads the section ``grpo``, selects groups, and compares completions within them.

    See :class:`ratchet.parameters.language.GrpoParameters`. List it before a base class with a
    model.
    """

    section: ClassVar[str] = "grpo"

    @classmethod
    def check_learner(
        cls, hyper_params: HyperParameters, agents: Mapping[str, LanguageAgentParameters]
    ) -> None:
        """Refuse redraws of agents that do not learn, and redraws with resampling."""
        super().check_learner(hyper_params, agents)
        parameters = hyper_params.grpo.settled
        if not parameters.redraws:
            return
        check_redraws("grpo.redraws", parameters.redraws, shared_models(agents))
        if parameters.dynamic_sampling:
            raise ParameterError(
                "grpo.dynamic_sampling: got true with grpo.redraws, expected false: the groups are"
                " draws of one turn, not completions of a task that others could replace."
            )

    def _read_loss(self) -> GrpoParameters:
        self._grpo = self._parameters(GrpoParameters, "grpo").settled
        self._averages: dict[str, float] = {}
        return self._grpo

    @property
    def max_resamples(self) -> int:
        """Maximal number of times further tasks are sampled to replace groups of equal rewards."""
        return self._grpo.max_resamples if self._grpo.dynamic_sampling else 0

    @property
    def redraws(self) -> Mapping[str, int]:
        """``grpo.redraws``."""
        return self._grpo.redraws

    def keeps_group(self, group: Sequence[Trajectory]) -> bool:
        """Return whether a group's rewards differ; True for all groups unless resampling is on."""
        return not self._grpo.dynamic_sampling or len({one.reward for one in group}) > 1

    def _compare(
        self,
        scores: Tensor,
        group_ids: Sequence[str],
        *,
        runs: Sequence[str],
        agents: Sequence[str],
        averaged: Sequence[str],
        counts: Tensor,
    ) -> GroupAdvantages:
        """Compute advantages with :func:`group_advantages`; update the averages over iterations.

        ``averaged`` are the names of the rows' averages: their roles or agents. Draws of a turn are
        compared with each other; agents that share a model are all redrawn, or none.
        """
        parameters = self._grpo
        assert parameters.baseline is not None  # set by .settled
        assert parameters.advantage_scale is not None
        baseline = parameters.baseline
        if parameters.redraws.keys() & agents:
            baseline = "leave_one_out"
        of_batch = baseline == "batch_mean"
        advantages = group_advantages(
            scores,
            [""] * len(group_ids) if of_batch else group_ids,
            runs=runs,
            agents=averaged,
            counts=counts,
            baseline="mean" if baseline == "batch_mean" else baseline,
            scale=parameters.advantage_scale,
            agent_averages=self._averages,
            decay=parameters.baseline_decay,
        )
        self._averages = advantages.agent_averages
        return advantages

    def take_state(self) -> dict[str, Any]:
        """Add the agents' averages."""
        return {**super().take_state(), "averages": dict(self._averages)}

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`take_state`."""
        super().put_state(state)
        self._averages = dict(state["averages"])
