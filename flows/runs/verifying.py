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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.runs.identity import absolute_settings, with_earlier_agents
from flows.runs.pinning import Fork, arm_keys
from ratchet.errors import ParameterError, StoreError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.reserved import plays_text
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.store import StageStore
from ratchet.tracking.run_folder import find_run
from tasks.build_scenario import build_scenario
from tasks.stages.session import ArmSession, BaseSession
from tasks.tensordict.initial_state import initial_state, pretrained_state
from tasks.tensordict.keys import ArmKeys
from tasks.tensordict.pretrain import pretrain
from tasks.tensordict.rollouts import rollouts
from tasks.tensordict.test import test
from tasks.tensordict.train import train
from tasks.tensordict.whole import whole

if TYPE_CHECKING:
    from ratchet.store.manifest import Manifest
    from ratchet.tracking.manifest import StageRecord
    from ratchet.tracking.run_folder import RunFolder
    from tasks.stages.decorator import Metrics, Stage
    from tasks.stages.families import AnyKeys

_WORK: dict[str, Stage[ArmSession]] = {
    "initial_state": initial_state,
    "pretrain": pretrain,
    "pretrained_state": pretrained_state,
    "rollouts": rollouts,
    "test": test,
    "train": train,
    "whole": whole,
}
_DATA = "build_scenario"
_PREFERRED = ("train", "whole", "test", "initial_state")
"""The kind of stage that is made again if none is named: the latest of the first there is."""


@dataclass(frozen=True)
class CheckedStage:
    """One stage of a run.

    Attributes
    ----------
    record
        What the run says about it.
    problems
        What is wrong with its files; none if they are as they were written.
    """

    record: StageRecord
    problems: tuple[str, ...]


@dataclass(frozen=True)
class RemadeStage:
    """A stage that was made once more.

    Attributes
    ----------
    record
        What the run says about it.
    differences
        Files and metrics that came out otherwise; none if every bit is the same.
    code_changes
        Modules that have changed since it was stored, which may explain differences.
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
    folder = find_run((settings or ExperimentSettings()).runs, run)
    own = ExperimentSettings.from_dict(folder.manifest.settings)
    chosen = absolute_settings(settings or own)
    store = StageStore(chosen.store_url)
    stages = tuple(_check_files(store, folder.manifest.stages))
    broken = any(stage.problems for stage in stages)
    if not remake or broken:
        return Verification(folder.run_id, stages)
    record = _choose(folder, stage)
    return Verification(folder.run_id, stages, _remake(folder, record, chosen, store))


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


def _choose(folder: RunFolder, stage: str | None) -> StageRecord:
    """Choose the stage to make again."""
    manifest = folder.manifest
    base_dir = ExperimentSettings.from_dict(manifest.settings).base_dir
    text_arms = {
        arm
        for arm, data in manifest.arms.items()
        if plays_text(
            HyperParameters.from_dict(data, base_dir)
        )  # nobody can ask for an answer twice
    }
    records = [r for r in manifest.stages if r.arm not in text_arms or r.stage == _DATA]
    records = [record for record in records if _kind(record) in (*_WORK, _DATA)]
    if stage is None:
        for kind in _PREFERRED:
            found = [record for record in records if _kind(record) == kind]
            if found:
                return max(found, key=lambda record: record.iteration)
        stage = _DATA
    name, _, iteration = stage.partition(":")
    found = [
        r for r in records if r.stage == name and (not iteration or str(r.iteration) == iteration)
    ]
    if not found:
        known = ", ".join(f"{record.stage}:{record.iteration}" for record in records)
        raise ParameterError(
            f"verify: run {folder.run_id} has no stage {stage!r} that can be made again without"
            f" asking a service; expected one of {known or 'none'}."
        )
    return max(found, key=lambda record: record.iteration)


def _kind(record: StageRecord) -> str:
    kind = record.stage.partition("-")[0]
    return kind if kind in _WORK else record.stage


def _remake(
    folder: RunFolder, record: StageRecord, settings: ExperimentSettings, store: StageStore
) -> RemadeStage:
    """Make a stage in a folder that is thrown away, and compare."""
    manifest = folder.manifest
    data = manifest.arms[record.arm]
    arms = {record.arm: HyperParameters.from_dict(data, settings.base_dir)}
    arms = with_earlier_agents(arms, settings)
    fork = Fork.read(folder.path)
    (keys,) = arm_keys(arms, settings, store, fork, manifest.stages)
    stored = store.peek(record.key)
    assert stored is not None  # its files have just been read
    with tempfile.TemporaryDirectory(prefix="ratchet-verify-") as scratch:
        metrics = _make(keys, record, Path(scratch), settings, store)
        differences = [*_different_files(Path(scratch), stored), *_different(metrics, stored)]
    return RemadeStage(record, tuple(differences), tuple(keys.code_changes(stored)))


def _make(
    keys: AnyKeys,
    record: StageRecord,
    folder: Path,
    settings: ExperimentSettings,
    store: StageStore,
) -> Metrics:
    if record.stage == _DATA:
        one_thread = ThreadPoolExecutor(1)
        base = BaseSession(keys, settings, store, one_thread)
        with closing(base):
            return build_scenario.work(keys.build_scenario(), folder, base)
    assert isinstance(keys, ArmKeys)  # of chat models only the data are made again
    session = ArmSession(keys, settings, store)
    if record.stage == "train":
        call = keys.train(record.start_iteration, record.iteration)
    else:
        call = keys.by_name(record.stage, record.iteration)
    with closing(session):
        return _WORK[_kind(record)].work(call, folder, session)


def _different_files(folder: Path, stored: Manifest) -> list[str]:
    made = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    there = {name: entry.sha256 for name, entry in stored.files.items()}
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
