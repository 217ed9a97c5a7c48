"""Test a run's saved states again: a new run that trains nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.runs.identity import absolute_settings, read_arms, stable_run_id
from flows.runs.result import ExperimentResult
from flows.runs.running import run_arms
from ratchet.experiment_files.loading import expand_paths
from ratchet.parameters.changes import merge_changes
from ratchet.parameters.converters import upgraded
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.run_folder import find_run


def retest_experiment(
    run: str,
    changes: Mapping[str, Any] | None = None,
    settings: ExperimentSettings | None = None,
) -> ExperimentResult:
    """Walk a run's saved states in order and test each.

    The same again goes on with the same run.

    Parameters
    ----------
    run
        The tested run's id, its beginning, or its folder.
    changes
        Dotted path → new value, for every arm, e.g. ``{"rl.num_test_iterations": 100}``.
    settings
        Other settings than the tested run's.

    Raises
    ------
    RunNotFoundError
        If there is no such run.
    ParameterError
        If it has no states to test, or the changes don't fit.
    """
    base = settings or ExperimentSettings()
    tested = find_run(base.runs, run)
    manifest = tested.manifest
    chosen = settings or ExperimentSettings.from_dict(manifest.settings)
    origin = {"base_run": {"base_run_type": "rerun_tests", "run_id": tested.run_id}}
    wanted = merge_changes(expand_paths(changes or {}, "changes"), origin)
    arms = {
        arm: HyperParameters.from_dict(
            merge_changes(upgraded(data, f"run {run}"), wanted), chosen.base_dir
        )
        for arm, data in manifest.arms.items()
    }
    arms = read_arms(arms.pop(MAIN_ARM), arms)
    name = f"{manifest.name}-retest"
    update = {
        "run_id": stable_run_id(name, arms, tested.run_id),
        "runs": str(tested.path.resolve().parent),
        "tags": {**chosen.tags, "retest_of": tested.run_id},
    }
    return run_arms(arms, absolute_settings(chosen.model_copy(update=update)), name=name)
