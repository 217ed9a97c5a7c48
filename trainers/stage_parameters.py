"""The parameters that a trainer's stage reads, found by the purposes it reads them for.

When in doubt a value is included: recomputing a stage costs time, a stale stage is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratchet.errors import UnknownNameError, nearest
from ratchet.parameters.key_inputs import parameters_read
from ratchet.parameters.purposes import EVERYTHING, Purpose
from trainers.custom_state import is_custom
from trainers.named import TRAINERS

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from trainers.base import Trainer

StagePurposes = dict[str, frozenset[Purpose]]
"""Stage → purposes for which it reads parameters."""

_PLAYED = frozenset({Purpose.GAME, Purpose.NETWORKS})
NETWORK_STAGES: StagePurposes = {
    "initial_state": _PLAYED | {Purpose.NORMALIZATION},
    "pretrain": frozenset({Purpose.PRETRAINING}),
    "imitate": _PLAYED | {Purpose.IMITATION},
    "train": _PLAYED | {Purpose.LEARNING, Purpose.CRITIC},
    "test": _PLAYED | {Purpose.TESTS},
}
"""Those of trainers of local networks."""
_SPOKEN = frozenset({Purpose.GAME, Purpose.SPEECH})
_JUDGED = _SPOKEN | {Purpose.CHAT_TESTS, Purpose.REPORTS}
TEXT_STAGES: StagePurposes = {
    "initial_state": frozenset({Purpose.GAME}),
    "sample_rollouts": _SPOKEN | {Purpose.ROLLOUTS, Purpose.BRANCHES},
    "log_stats": frozenset({Purpose.GAME, Purpose.REPORTS}),
    "test_during_training": _JUDGED,
    "create_fine_tune_jobs": _SPOKEN | {Purpose.FINE_TUNING},
    "await_fine_tune_jobs": frozenset(),  # the awaited jobs are in the state
    "test": _JUDGED,
}
"""Those of trainers of chat models."""


def stage_parameters(
    hyper_params: HyperParameters,
    trainer: type[Trainer],
    stages: StagePurposes,
    stage: str,
    agent: str | None = None,
) -> dict[str, Any]:
    """Return the parameters that a stage reads, as plain data: one agent's, or all agents'.

    For Ratchet's trainers ``stages`` determines them. A custom trainer may read every parameter,
    but the number of iterations only if one of its stages declares that. Raises
    UnknownNameError if the stage does not exist.
    """
    if stage not in stages:
        raise UnknownNameError(f"stage: unknown {stage!r}.{nearest(stage, stages)}")
    if not is_custom(trainer):
        names = {hyper_params.trainer_name, *TRAINERS.names_of(trainer)}
        return parameters_read(hyper_params, stages[stage], names, agent)
    reads_horizon = any(Purpose.HORIZON in purposes for purposes in stages.values())
    purposes = EVERYTHING if reads_horizon else EVERYTHING - {Purpose.HORIZON}
    return parameters_read(hyper_params, purposes, agent=agent)
