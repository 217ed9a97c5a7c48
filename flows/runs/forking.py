"""Fork a run: a new run with other parameters that shares all before a point of its parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flows.runs.forks import Fork, ForkPoint, parse_point, parse_stage
from flows.runs.resolving import Arms, ResolvedExperiment, resolve_arms, with_earlier_agents
from flows.runs.result import ExperimentResult
from flows.runs.running import run_resolved
from ratchet.errors import ParameterError
from ratchet.parameters.changes import expand_paths, merge_changes
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.manifest import ITERATION_STAGES, RunManifest
from ratchet.tracking.run_folder import find_run
from tasks.stages.families import make_keys
from tasks.tensordict.keys import ArmKeys
from tasks.text.keys import TextArmKeys

if TYPE_CHECKING:
    from ratchet.parameters.curriculum import Phase

_FIRST = ("train", ITERATION_STAGES[0])


def fork_experiment(
    run: str,
    from_stage: str | int,
    changes: Mapping[str, Any] | None = None,
    settings: ExperimentSettings | None = None,
) -> ExperimentResult:
    """Start a run that continues another's state with other parameters.

    The same fork again goes on with the same run.

    Parameters
    ----------
    run
        The parent's id, its beginning, or its folder.
    from_stage
        "K" or "K:train": the first training iteration that the fork does itself; the state after
        K iterations is the parent's. 0 shares no training. Of chat models also "K:STAGE", such as
        "3:create_fine_tune_jobs": the first stage that it does itself.
    changes
        Dotted path → new value, for every arm.
    settings
        Other settings than the parent's.

    Raises
    ------
    RunNotFoundError
        If there is no such run.
    ParameterError
        If the parent has no state after K iterations, or the changes don't fit.
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
    own = "" if stage in _FIRST else stage
    place = f"{iteration}:{own}" if own else str(iteration)
    here = {"run_id": None, "runs": str(parent.path.resolve().parent)}
    chosen = chosen.model_copy(update=here)
    found = resolve_arms(
        with_earlier_agents(arms, chosen),
        chosen,
        name=f"{manifest.name}-fork",
        origin=(parent.run_id, place),
    )
    fork = Fork(parent=parent.run_id, iteration=iteration, stage=own, stages=manifest.stages)
    return replace(found, fork=found.fork or fork)


def _check_state(
    manifest: RunManifest, arms: Arms, iteration: int, stage: str, base_dir: str | None
) -> None:
    for arm, hyper_params in arms.items():
        keys = make_keys(arm, hyper_params, base_dir=base_dir)
        if isinstance(keys, TextArmKeys):
            _check_text_state(manifest, arm, ForkPoint.at(iteration, stage or ITERATION_STAGES[0]))
            continue
        _check_tensor_state(manifest, parse_stage(f"{iteration}:{stage}".rstrip(":")))
        if isinstance(keys, ArmKeys) and keys.phases:
            given = HyperParameters.from_dict(manifest.arms[arm], base_dir)
            before = make_keys(arm, given, base_dir=base_dir)
            assert isinstance(before, ArmKeys)  # the state is of the same family
            _check_begun_phase(
                keys.phase_from(iteration), before.phase_before(iteration), iteration
            )


def _check_begun_phase(phase: Phase | None, before: Phase | None, iteration: int) -> None:
    """Refuse to change what a phase begins with where it has begun: the state has it as it was."""
    if phase is None or phase.start >= iteration:
        return
    for what, now, then in (
        ("its first iteration", phase.start, 0 if before is None else before.start),
        ("the agents that are fresh", phase.fresh, () if before is None else before.fresh),
        ("pools", phase.pools or {}, {} if before is None else before.pools or {}),
    ):
        if now != then:
            raise ParameterError(
                f"phases.{phase.name}: it has begun before iteration {iteration}, but the fork"
                f" changes {what} from {then} to {now}, expected what the state was made with."
                f" Fork where a phase begins, e.g. --from {phase.start}, or leave that as it was."
            )


def _check_text_state(manifest: RunManifest, arm: str, point: ForkPoint) -> None:
    known = {(record.stage, record.iteration) for record in manifest.stages if record.arm == arm}
    for name, iteration in point.needed:
        if (name, iteration) not in known:
            raise ParameterError(
                f"fork: run {manifest.run_id} has not finished {name} {iteration} of arm {arm!r},"
                " which the fork would continue. Choose an earlier point, or go on with"
                f" `ratchet resume {manifest.run_id}` first."
            )


def _check_tensor_state(manifest: RunManifest, iteration: int) -> None:
    known = sorted({r.iteration for r in manifest.stages if r.stage == "train"})
    if iteration and iteration not in known:
        states = ", ".join(map(str, known)) or "none"
        raise ParameterError(
            f"fork: run {manifest.run_id} has no state after {iteration} iterations; it has those"
            f" after 0, {states}. Choose one of them: `ratchet fork {manifest.run_id} --from K`."
        )
