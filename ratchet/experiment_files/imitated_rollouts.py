"""Rollouts of an earlier run that agents imitate: ``imitation.source: run:RUN``.

Known by the keys of the stages that have kept them, so that what is imitated decides a result and
not where it comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.errors import ParameterError
from ratchet.tracking.manifest import MAIN_ARM

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore

_STAGE = "rollouts"


def imitated_rollouts(
    hyper_params: HyperParameters, settings: ExperimentSettings, store: StageStore
) -> tuple[str, ...]:
    """Return the keys of the stages with the rollouts to imitate, by iteration; none by default.

    Raises
    ------
    RunNotFoundError
        If there is no such run.
    ParameterError
        If its main arm has kept none.
    """
    imitation = hyper_params.imitation
    if not imitation.agents or imitation.run is None:
        return ()
    from ratchet.tracking.run_folder import find_run

    folder = find_run(settings.runs, imitation.run)
    records = [r for r in folder.manifest.stages if (r.arm, r.stage) == (MAIN_ARM, _STAGE)]
    found = sorted((r.iteration, r.key) for r in records if store.peek(r.key) is not None)
    if not found:
        raise ParameterError(
            f"imitation.source: got {imitation.source!r}, but run {folder.run_id} has kept no"
            " rollouts in the store, expected some. Run its experiment again with"
            " settings.rollout_sample_period=K: what is trained stays, and the rollouts of every"
            " K-th stored iteration are played once more."
        )
    return tuple(key for _, key in found)
