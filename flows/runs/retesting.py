"""Test a run's saved states again: a new run that trains nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.runs.resolving import ResolvedExperiment, resolve_arms, with_earlier_agents
from flows.runs.result import ExperimentResult
from flows.runs.running import run_resolved
from ratchet.parameters.changes import expand_paths, merge_changes
from ratchet.parameters.converters import upgraded
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
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
    return run_resolved(resolve_retest(run, changes, settings))


def resolve_retest(
    run: str,
    changes: Mapping[str, Any] | None = None,
    settings: ExperimentSettings | None = None,
) -> ResolvedExperiment:
    """Resolve a test of a run's states; parameters and errors as :func:`retest_experiment`."""
    tested = find_run((settings or ExperimentSettings()).runs, run)
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
    update = {
        "run_id": None,
        "runs": str(tested.path.resolve().parent),
        "tags": {**chosen.tags, "retest_of": tested.run_id},
    }
    chosen = chosen.model_copy(update=update)
    return resolve_arms(
        with_earlier_agents(arms, chosen),
        chosen,
        name=f"{manifest.name}-retest",
        origin=(tested.run_id,),
    )
