"""Verification of a run: check every stored file, recompute one stage, and compare them bitwise.

The store does not change: the stage is recomputed in a temporary folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.runs.removed_states import check_state, describe_removed
from flows.runs.resolve import ResolvedExperiment, resolve_run
from ratchet.errors import ParameterError, StoreError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.local import hash_file
from ratchet.tracking.stage_kinds import BUILD_SCENARIO, ROLLOUTS, kind_of
from ratchet.tracking.trainer_files import METADATA_FILE
from tasks.stages.families import open_session, stage_functions
from tasks.stages.files import TRANSCRIPTS_FILE
from tasks.stages.sequence import recorded_calls
from tasks.stages.trained_keys import TrainedKeys
from tasks.stages.undeclared_files import NOTED_FILE

if TYPE_CHECKING:
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore
    from ratchet.tracking.manifest import StageRecord
    from tasks.stages.decorator import Metrics
    from tasks.stages.families import AnyKeys


@dataclass(frozen=True)
class CheckedStage:
    """A stage of a run: its record, and problems of its files."""

    record: StageRecord
    problems: tuple[str, ...]


@dataclass(frozen=True)
class RemadeStage:
    """A recomputed stage.

    ``differences`` are files and metrics that differ, empty if all bits are equal;
    ``code_changes`` are modules that changed since it was stored, which may explain differences.
    """

    record: StageRecord
    differences: tuple[str, ...]
    code_changes: tuple[str, ...]


@dataclass(frozen=True)
class Verification:
    """Result of verifying a run; ``remade`` is None if no stage was recomputed.

    ``removed`` describes states that were removed to free space, which is no problem.
    """

    run_id: str
    stages: tuple[CheckedStage, ...]
    remade: RemadeStage | None = None
    removed: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether all files are intact and the recomputed stage is identical."""
        files = all(not stage.problems for stage in self.stages)
        return files and (self.remade is None or not self.remade.differences)


def verify_run(
    run: str,
    settings: ExperimentSettings | None = None,
    *,
    stage: str | None = None,
    remake: bool = True,
) -> Verification:
    """Verify a run.

    Parameters
    ----------
    run
        The run's id, a prefix of it, or its folder.
    settings
        Settings that contain the runs folder and replace the run's.
    stage
        The stage to recompute: its name in the run folder, or ``NAME:K`` for the one after K
        iterations. By default the latest training stage.
    remake
        Whether to recompute a stage.

    Raises
    ------
    RunNotFoundError
        If the run does not exist.
    ParameterError
        If it has no such stage, or the stage calls a service.
    """
    runs = (settings or ExperimentSettings()).runs
    experiment = resolve_run(run, settings, runs)
    records = experiment.records
    stages = tuple(_check_files(experiment.store, records))
    is_damaged = any(checked.problems for checked in stages)
    removed = tuple(describe_removed(experiment.store, records))
    if not remake or is_damaged:
        return Verification(experiment.run_id, stages, removed=removed)
    chosen = _choose(experiment, stage)
    remade = None if chosen is None else _remake(experiment, chosen)
    return Verification(experiment.run_id, stages, remade, removed)


def _check_files(store: StageStore, records: Iterable[StageRecord]) -> Iterable[CheckedStage]:
    """Check the files of each stage; stages that arms share are read once."""
    problems: dict[str, tuple[str, ...]] = {}
    for record in records:
        if record.key not in problems:
            try:
                problems[record.key] = tuple(store.verify(record.key))
            except StoreError as error:
                problems[record.key] = (str(error),)
        yield CheckedStage(record, problems[record.key])


def _choose(experiment: ResolvedExperiment, stage: str | None) -> StageRecord | None:
    """Return the stage to recompute; None if none is named and none is suitable.

    For chat models only the data are suitable, unless a model generated part of them: responses
    are not reproducible.
    """
    networks = {keys.arm for keys in experiment.keys if isinstance(keys, TrainedKeys)}
    local = {k.arm for k in experiment.keys if not k.scenario.asked_for_data(k.hyper_params)}
    records = [
        record
        for record in experiment.records
        if record.arm in (local if record.stage == BUILD_SCENARIO.name else networks)
    ]
    if stage is None and not records:
        return None
    if stage is None:
        stage = _preferred(experiment, records)
    name, _, iteration = stage.partition(":")
    matches = [
        r for r in records if r.stage == name and (not iteration or str(r.iteration) == iteration)
    ]
    if not matches:
        available = ", ".join(f"{record.stage}:{record.iteration}" for record in records)
        raise ParameterError(
            f"verify: run {experiment.run_id} has no stage {stage!r} that can be recomputed without"
            f" calling a service; expected one of {available or 'none'}."
        )
    return max(matches, key=lambda record: record.iteration)


def _preferred(experiment: ResolvedExperiment, records: Sequence[StageRecord]) -> str:
    """Return the name of the last stage that trains; without one, of a test, or of any stage."""
    kinds = {kind.name: kind for keys in experiment.keys for kind in keys.kinds.values()}

    def rank(record: StageRecord) -> tuple[bool, bool]:
        kind = kind_of(record.stage, kinds.values())
        return kind.state == "trained", kind.is_test

    return max(reversed(records), key=rank).stage


def _remake(experiment: ResolvedExperiment, record: StageRecord) -> RemadeStage:
    """Recompute a stage in a temporary folder and compare it with the stored one."""
    (keys,) = (keys for keys in experiment.keys if keys.arm == record.arm)
    stored = experiment.store.peek(record.key)
    assert stored is not None  # its files have been checked
    with tempfile.TemporaryDirectory(prefix="ratchet-verify-") as scratch:
        metrics = _compute(keys, record, Path(scratch), experiment)
        differences = [*_different_files(Path(scratch), stored), *_different(metrics, stored)]
    return RemadeStage(record, tuple(differences), tuple(keys.code_changes(stored)))


def _compute(
    keys: AnyKeys, record: StageRecord, folder: Path, experiment: ResolvedExperiment
) -> Metrics:
    settings, store = experiment.settings, experiment.store
    positions = [(r.stage, r.iteration) for r in experiment.records if r.arm == keys.arm]
    call = recorded_calls(keys, positions)[record.stage, record.iteration]
    call = replace(call, start_iteration=record.start_iteration)
    check_state(store, keys, call)
    with closing(open_session(keys, settings, store)) as session:
        try:
            return stage_functions(keys)[call.stage].work(call, folder, session)
        finally:
            session.stage_finished(call)  # deletes temporary files; the stage is stored


def _different_files(folder: Path, stored: Manifest) -> list[str]:
    """Compare all files except those about the computation: versions, commit, files read.

    And except transcripts of training rollouts, which are next to them in another file.
    """
    left_out = {METADATA_FILE, NOTED_FILE}
    if stored.stage == ROLLOUTS.name:
        left_out.add(TRANSCRIPTS_FILE)
    new = {
        path.relative_to(folder).as_posix(): hash_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in left_out
    }
    old = {n: e.sha256 for n, e in stored.files.items() if Path(n).name not in left_out}
    return [
        f"{name}: {_describe_difference(new.get(name), old.get(name))}"
        for name in sorted(new.keys() | old.keys())
        if new.get(name) != old.get(name)
    ]


def _describe_difference(new: str | None, old: str | None) -> str:
    if new is None:
        return "stored, but not recomputed"
    if old is None:
        return "recomputed, but not stored"
    return f"SHA-256 {new[:12]}… recomputed, {old[:12]}… stored"


def _different(metrics: Sequence[Any], stored: Manifest) -> list[str]:
    """Compare metrics as JSON, in which NaN equals NaN."""
    new = {point.iteration: _text(point.values) for point in metrics}
    old = {point.iteration: _text(point.values) for point in stored.metrics}
    return [
        f"metrics of iteration {iteration}: values differ from the stored ones"
        for iteration in sorted(new.keys() | old.keys())
        if new.get(iteration) != old.get(iteration)
    ]


def _text(values: dict[str, float]) -> str:
    return json.dumps(values, sort_keys=True)
