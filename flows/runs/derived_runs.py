"""Runs derived from an earlier run: forks and repeated tests.

A fork is a new run with changed parameters that shares its parent's stages before a point. A
retest is a new run that tests the saved states of a run and trains nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flows.runs.references import Fork, ForkPoint
from flows.runs.resolve import Arms, ResolvedExperiment, resolve_arms, with_earlier_agents
from flows.runs.result import ExperimentResult
from flows.runs.run import run_resolved
from ratchet.errors import ParameterError
from ratchet.parameters.compatibility.converters import upgraded
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.reading.deep_merge import expand_paths, merge_changes
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.manifest import ITERATION_STAGES, RunManifest
from ratchet.tracking.run_folder import find_run
from tasks.stages.families import make_keys
from tasks.text.keys import TextArmKeys

if TYPE_CHECKING:
    from ratchet.parameters.curriculum import Phase


_POINT = re.compile(r"(\d+)(?::([a-z_]+))?")
_FIRST = ("train", ITERATION_STAGES[0])


def fork_experiment(
    run: str,
    from_stage: str | int,
    changes: Mapping[str, Any] | None = None,
    settings: ExperimentSettings | None = None,
) -> ExperimentResult:
    """Start a run that continues a state of another run with changed parameters.

    The same call again resumes the same run.

    Parameters
    ----------
    run
        The parent's id, a prefix of it, or its folder.
    from_stage
        "K" or "K:train": the first training iteration of the fork, which starts from the parent's
        state after K iterations; 0 shares no training. For chat models also "K:STAGE", such as
        "3:create_fine_tune_jobs": the first stage of the fork.
    changes
        Dotted path → new value, for every arm.
    settings
        Settings that replace the parent's.

    Raises
    ------
    RunNotFoundError
        If the run does not exist.
    ParameterError
        If the parent has no state after K iterations, or the changes are invalid.
    """
    return run_resolved(resolve_fork(run, from_stage, changes, settings))


def resolve_fork(
    run: str,
    from_stage: str | int,
    changes: Mapping[str, Any] | None = None,
    settings: ExperimentSettings | None = None,
) -> ResolvedExperiment:
    """Resolve a fork; parameters and errors as :func:`fork_experiment`."""
    parent = find_run((settings or ExperimentSettings()).runs, run)
    manifest = parent.manifest
    chosen = settings or ExperimentSettings.from_dict(manifest.settings)
    iteration, stage = parse_point(from_stage)
    nested = expand_paths(changes or {}, "changes")
    arms = {
        arm: HyperParameters.from_dict(merge_changes(data, nested), chosen.base_dir)
        for arm, data in manifest.arms.items()
    }
    _check_state(manifest, arms, iteration, stage, chosen.base_dir)
    if stage in _FIRST:
        stage = ""
    fork = Fork(parent=parent.run_id, iteration=iteration, stage=stage, stages=manifest.stages)
    update = {
        "run_id": None,
        "runs": str(parent.path.resolve().parent),
        "experiment_name": chosen.experiment_name or manifest.experiment_name,
    }
    chosen = chosen.model_copy(update=update)
    experiment = resolve_arms(
        with_earlier_agents(arms, chosen),
        chosen,
        name=f"{manifest.name}-fork",
        origin=fork.origin,
    )
    return replace(experiment, fork=experiment.fork or fork)


def parse_stage(from_stage: str | int) -> int:
    """Parse "3" or "3:train" as 3; ParameterError for other texts."""
    iteration, stage = parse_point(from_stage)
    if stage not in ("", "train"):
        raise ParameterError(
            f"fork: got the stage {from_stage!r}, expected K or K:train, the first iteration of"
            " the fork."
        )
    return iteration


def parse_point(from_stage: str | int) -> tuple[int, str]:
    """Parse "3:create_fine_tune_jobs" into iteration and stage, which is empty if missing.

    Raises ParameterError for other texts.
    """
    match = _POINT.fullmatch(str(from_stage))
    if match is None:
        raise ParameterError(
            f"fork: got the stage {from_stage!r}, expected K, K:train, or K:STAGE for chat models."
        )
    return int(match.group(1)), match.group(2) or ""


def _check_state(
    manifest: RunManifest, arms: Arms, iteration: int, stage: str, base_dir: str | None
) -> None:
    for arm, hyper_params in arms.items():
        keys = make_keys(arm, hyper_params, base_dir=base_dir)
        started = iteration
        if isinstance(keys, TextArmKeys):
            point = ForkPoint.from_stage(iteration, stage or ITERATION_STAGES[0])
            _check_text_state(manifest, arm, point)
            started += point.index > 0
        else:
            _check_tensor_state(manifest, parse_stage(f"{iteration}:{stage}".rstrip(":")))
        if keys.phases:
            unchanged = HyperParameters.from_dict(manifest.arms[arm], base_dir)
            before = make_keys(arm, unchanged, base_dir=base_dir)
            _check_started_phase(keys.phase_from(iteration), before.phase_before(started), started)


def _check_started_phase(phase: Phase | None, before: Phase | None, iteration: int) -> None:
    """Refuse to change the initial conditions of a phase that started before the fork."""
    if phase is None or phase.start >= iteration:
        return
    for name, new, old in (
        ("its first iteration", phase.start, 0 if before is None else before.start),
        ("the agents that are fresh", phase.fresh, () if before is None else before.fresh),
        ("pools", phase.pools or {}, {} if before is None else before.pools or {}),
    ):
        if new != old:
            raise ParameterError(
                f"phases.{phase.name}: it started before iteration {iteration}, but the fork"
                f" changes {name} from {old} to {new}, expected {old}, as in the parent's state."
                f" Fork where a phase starts, e.g. --from {phase.start}, or undo this change."
            )


def _check_text_state(manifest: RunManifest, arm: str, point: ForkPoint) -> None:
    finished = {(r.stage, r.iteration) for r in manifest.stages if r.arm == arm}
    for name, iteration in point.required:
        if (name, iteration) not in finished:
            raise ParameterError(
                f"fork: run {manifest.run_id} has not finished {name} {iteration} of arm {arm!r},"
                " which the fork would continue. Choose an earlier point, or first finish it with"
                f" `ratchet resume {manifest.run_id}`."
            )


def _check_tensor_state(manifest: RunManifest, iteration: int) -> None:
    available = sorted(
        {r.iteration for r in manifest.stages if manifest.kind_of(r.stage).span == "iterations"}
    )
    if iteration and iteration not in available:
        raise ParameterError(
            f"fork: run {manifest.run_id} has no state after {iteration} iterations, expected one"
            f" of {', '.join(map(str, (0, *available)))}: `ratchet fork {manifest.run_id} --from"
            " K`."
        )


def retest_experiment(
    run: str,
    changes: Mapping[str, Any] | None = None,
    settings: ExperimentSettings | None = None,
) -> ExperimentResult:
    """Test a run's saved states in order, as a new run that trains nothing.

    The same call again resumes the same run.

    Parameters
    ----------
    run
        The tested run's id, a prefix of it, or its folder.
    changes
        Dotted path → new value, for every arm, e.g. ``{"rl.num_test_iterations": 100}``.
    settings
        Settings that replace the tested run's.

    Raises
    ------
    RunNotFoundError
        If the run does not exist.
    ParameterError
        If it has no states to test, or the changes are invalid.
    """
    return run_resolved(resolve_retest(run, changes, settings))


def resolve_retest(
    run: str,
    changes: Mapping[str, Any] | None = None,
    settings: ExperimentSettings | None = None,
) -> ResolvedExperiment:
    """Resolve a retest; parameters and errors as :func:`retest_experiment`."""
    tested = find_run((settings or ExperimentSettings()).runs, run)
    manifest = tested.manifest
    chosen = settings or ExperimentSettings.from_dict(manifest.settings)
    origin = {"base_run": {"base_run_type": "rerun_tests", "run_id": tested.run_id}}
    nested = merge_changes(expand_paths(changes or {}, "changes"), origin)
    arms = {
        arm: HyperParameters.from_dict(
            merge_changes(upgraded(data, f"run {run}"), nested), chosen.base_dir
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
    )
