"""Fork a run: a new run with other parameters that shares all before a point of its parent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.identity import absolute_settings, read_arms, stable_run_id
from flows.pinning import Fork
from flows.result import ExperimentResult
from flows.run import run_arms
from ratchet.errors import ParameterError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.loading import expand_paths, merge_changes
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.manifest import MAIN_ARM, RunManifest
from ratchet.tracking.run_folder import find_run

_STAGE = re.compile(r"(\d+)(?::train)?")


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
        K iterations is the parent's. 0 shares no training.
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
    base = settings or ExperimentSettings()
    parent = find_run(base.runs, run)
    manifest = parent.manifest
    chosen = settings or ExperimentSettings.from_dict(manifest.settings)
    iteration = parse_stage(from_stage)
    _check_state(manifest, iteration)
    arms = {
        arm: HyperParameters.from_dict(merge_changes(data, expand_paths(changes or {}, "changes")))
        for arm, data in manifest.arms.items()
    }
    others = {arm: params for arm, params in arms.items() if arm != MAIN_ARM}
    arms = read_arms(arms[MAIN_ARM], others)
    name = f"{manifest.name}-fork"
    run_id = stable_run_id(name, arms, parent.run_id, str(iteration))
    chosen = absolute_settings(
        chosen.model_copy(update={"run_id": run_id, "runs": str(parent.path.resolve().parent)})
    )
    fork = Fork(parent=parent.run_id, iteration=iteration, stages=manifest.stages)
    if Fork.read(Path(chosen.runs) / run_id) is None:
        fork.write(Path(chosen.runs) / run_id)
    return run_arms(arms, chosen, name=name)


def parse_stage(from_stage: str | int) -> int:
    """Read "3" or "3:train" as 3.

    Raises
    ------
    ParameterError
        For anything else.
    """
    match = _STAGE.fullmatch(str(from_stage))
    if match is None:
        raise ParameterError(
            f"fork: got the stage {from_stage!r}, expected K or K:train, the first iteration that"
            " the fork does itself."
        )
    return int(match.group(1))


def _check_state(manifest: RunManifest, iteration: int) -> None:
    """Make sure that the parent has the state to begin with."""
    known = sorted({r.iteration for r in manifest.stages if r.stage == "train"})
    if iteration and iteration not in known:
        states = ", ".join(map(str, known)) or "none"
        raise ParameterError(
            f"fork: run {manifest.run_id} has no state after {iteration} iterations; it has those"
            f" after 0, {states}. Choose one of them: `ratchet fork {manifest.run_id} --from K`."
        )
