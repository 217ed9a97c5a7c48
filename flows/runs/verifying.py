"""Check a run: read every stored file again, make one stage once more, and compare bit by bit.

Changes nothing in the store: the stage is made in a folder that is thrown away.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.runs.resolving import ResolvedExperiment, resolve_run
from ratchet.errors import ParameterError, StoreError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.checkpoint_folders import METADATA_FILE
from tasks.stages.families import arm_session, stage_functions
from tasks.stages.sequence import recorded_calls
from tasks.stages.session import BaseSession
from tasks.tensordict.keys import ArmKeys

if TYPE_CHECKING:
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore
    from ratchet.tracking.manifest import StageRecord
    from tasks.stages.decorator import Metrics
    from tasks.stages.families import AnyKeys

_PREFERRED = ("train", "run_trainer", "test", "initial_state", "build_scenario")
"""The kind of stage that is made again if none is named: the latest of the first there is."""


@dataclass(frozen=True)
class CheckedStage:
    """One stage of a run: its record, and what is wrong with its files, if anything."""

    record: StageRecord
    problems: tuple[str, ...]


@dataclass(frozen=True)
class RemadeStage:
    """A stage that was made once more.

    ``differences`` are files and metrics that came out otherwise, none if every bit is the same;
    ``code_changes`` modules that have changed since it was stored, which may explain differences.
    """

    record: StageRecord
    differences: tuple[str, ...]
    code_changes: tuple[str, ...]


@dataclass(frozen=True)
class Verification:
    """What a check of a run has found; ``remade`` is None if no stage was made again."""

    run_id: str
    stages: tuple[CheckedStage, ...]
    remade: RemadeStage | None = None

    @property
    def is_sound(self) -> bool:
        """Whether every file is as it was written, and what was made again came out the same."""
        files = all(not stage.problems for stage in self.stages)
        return files and (self.remade is None or not self.remade.differences)


def verify_run(
    run: str,
    settings: ExperimentSettings | None = None,
    *,
    stage: str | None = None,
    remake: bool = True,
) -> Verification:
    """Check a run.

    Parameters
    ----------
    run
        The run's id, its beginning, or its folder.
    settings
        Where runs lie; the store is the run's own unless the settings name another.
    stage
        Which stage to make again: its name in the run folder, or ``NAME:K`` for the one after K
        iterations. By default the latest one that trains.
    remake
        Whether to make a stage again at all.

    Raises
    ------
    RunNotFoundError
        If there is no such run.
    ParameterError
        If it has no such stage, or one that would ask a service again.
    """
    runs = (settings or ExperimentSettings()).runs
    experiment = resolve_run(run, settings, runs)
    records = experiment.records
    stages = tuple(_check_files(experiment.store, records))
    broken = any(checked.problems for checked in stages)
    if not remake or broken:
        return Verification(experiment.run_id, stages)
    chosen = _choose(experiment, stage)
    remade = None if chosen is None else _remake(experiment, chosen)
    return Verification(experiment.run_id, stages, remade)


def _check_files(store: StageStore, records: Iterable[StageRecord]) -> Iterable[CheckedStage]:
    """Read the files of each stage again; of those that arms share once."""
    known: dict[str, tuple[str, ...]] = {}
    for record in records:
        if record.key not in known:
            try:
                known[record.key] = tuple(store.verify(record.key))
            except StoreError as error:
                known[record.key] = (str(error),)
        yield CheckedStage(record, known[record.key])


def _choose(experiment: ResolvedExperiment, stage: str | None) -> StageRecord | None:
    """Choose the stage to make again; None if none was named and there is none.

    Of chat models only the data, unless one has written part of them: nobody answers twice alike.
    """
    networks = {keys.arm for keys in experiment.keys if isinstance(keys, ArmKeys)}
    unasked = {k.arm for k in experiment.keys if not k.scenario.asked_for_data(k.hyper_params)}
    records = [
        record
        for record in experiment.records
        if record.arm in (unasked if record.stage == "build_scenario" else networks)
    ]
    if stage is None and not records:
        return None
    if stage is None:
        kinds = [kind for kind in _PREFERRED if any(r.stage == kind for r in records)]
        stage = kinds[0] if kinds else _PREFERRED[-1]
    name, _, iteration = stage.partition(":")
    found = [
        r for r in records if r.stage == name and (not iteration or str(r.iteration) == iteration)
    ]
    if not found:
        known = ", ".join(f"{record.stage}:{record.iteration}" for record in records)
        raise ParameterError(
            f"verify: run {experiment.run_id} has no stage {stage!r} that can be made again without"
            f" asking a service; expected one of {known or 'none'}."
        )
    return max(found, key=lambda record: record.iteration)


def _remake(experiment: ResolvedExperiment, record: StageRecord) -> RemadeStage:
    """Make a stage in a folder that is thrown away, and compare."""
    (keys,) = (keys for keys in experiment.keys if keys.arm == record.arm)
    stored = experiment.store.peek(record.key)
    assert stored is not None  # its files have just been read
    with tempfile.TemporaryDirectory(prefix="ratchet-verify-") as scratch:
        metrics = _make(keys, record, Path(scratch), experiment)
        differences = [*_different_files(Path(scratch), stored), *_different(metrics, stored)]
    return RemadeStage(record, tuple(differences), tuple(keys.code_changes(stored)))


def _make(
    keys: AnyKeys, record: StageRecord, folder: Path, experiment: ResolvedExperiment
) -> Metrics:
    settings, store = experiment.settings, experiment.store
    places = [(r.stage, r.iteration) for r in experiment.records if r.arm == keys.arm]
    call = recorded_calls(keys, places)[record.stage, record.iteration]
    call = replace(call, start_iteration=record.start_iteration)
    session = (
        arm_session(keys, settings, store)
        if isinstance(keys, ArmKeys)
        else BaseSession(keys, settings, store, ThreadPoolExecutor(1))
    )
    with closing(session):
        try:
            return stage_functions(keys)[call.stage].work(call, folder, session)
        finally:
            session.stage_finished(call)  # it is stored: nothing that was kept aside is needed


def _different_files(folder: Path, stored: Manifest) -> list[str]:
    """Compare all files but those that say which version and commit has made them."""
    made = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != METADATA_FILE
    }
    there = {n: e.sha256 for n, e in stored.files.items() if Path(n).name != METADATA_FILE}
    return [
        f"{name}: {_compared(made.get(name), there.get(name))}"
        for name in sorted(made.keys() | there.keys())
        if made.get(name) != there.get(name)
    ]


def _compared(made: str | None, stored: str | None) -> str:
    if made is None:
        return "stored, but not made again"
    if stored is None:
        return "made again, but not stored"
    return f"SHA-256 {made[:12]}… made again, {stored[:12]}… stored"


def _different(metrics: Sequence[Any], stored: Manifest) -> list[str]:
    """Compare metrics as they are written, NaN with NaN."""
    made = {point.iteration: _text(point.values) for point in metrics}
    there = {point.iteration: _text(point.values) for point in stored.metrics}
    return [
        f"metrics of iteration {iteration}: got other values than those stored"
        for iteration in sorted(made.keys() | there.keys())
        if made.get(iteration) != there.get(iteration)
    ]


def _text(values: dict[str, float]) -> str:
    return json.dumps(values, sort_keys=True)
