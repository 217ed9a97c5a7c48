"""Real runs survive garbage collection, and are recomputed on a different machine."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flows import fork_experiment, resume_experiment, run_experiment, verify_run
from flows.runs.export import export_run
from flows.runs.garbage_collection import GarbageCollector, RetentionLimits
from flows.runs.import_run import import_run
from flows.runs.run_view import watch_run
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.store import StageStore
from ratchet.tracking.run_folder import RunFolder, find_run

pytestmark = pytest.mark.slow


class Watcher:
    """Thread that watches the first run of a folder."""

    def __init__(self, runs: str) -> None:
        self._runs = Path(runs)
        self._thread = threading.Thread(target=self._watch)
        self.under_way: set[tuple[str, int]] = set()
        self.finished: set[tuple[str, int]] = set()
        self.statuses: list[str] = []

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.join(30)

    def _watch(self) -> None:
        while not list(self._runs.glob("*/manifest.json")):
            time.sleep(0.001)
        (file,) = self._runs.glob("*/manifest.json")
        for view in watch_run(RunFolder(file.parent), seconds=0.001):
            self.statuses.append(view.status)
            for stage in view.stages:
                noted = self.under_way if stage.state == "under way" else self.finished
                noted.add((stage.stage, stage.iteration))


def test_a_run_with_a_custom_trainer_survives_gc_and_is_recomputed_after_import(lab: Any) -> None:
    here = ExperimentSettings.from_dict(lab.settings())
    small = lab.hyper_params(rl__num_iterations=4)
    with Watcher(here.runs) as watcher:
        parent = run_experiment(small, here, name="tiny")
    assert {("train", 3), ("train", 4)} <= watcher.finished
    assert watcher.under_way
    assert watcher.statuses[-1] == "completed"
    fork = fork_experiment(parent.run_id, 3, {"rl.lr": 0.25}, here)
    other = run_experiment({**small, "seed": 9}, here, name="tiny")
    for run in (parent, other):
        find_run(here.runs, run.run_id).delete()
    store = StageStore(here.store_url)
    before = len(list(store.iterate()))
    collector = GarbageCollector(store, lab.folder / "home", (), RetentionLimits(older_than=0))
    removed = collector.remove(collector.plan())
    assert {each.run_id for each in removed} == {other.run_id}, (
        "the fork may need its parent's stages"
    )
    assert len(list(store.iterate())) == before - len(removed)
    assert verify_run(fork.run_id, here).is_sound
    done = lab.done()
    assert resume_experiment(fork.run_id, here).computed == 0, "its parent is deleted"
    assert lab.done() == done

    packed = lab.folder / "run.zip"
    exported = export_run(fork.run_id, packed, here.runs)
    shutil.rmtree(lab.folder / "home" / "store")
    shutil.rmtree(here.runs)
    there = here.model_copy(
        update={"home": str(lab.folder / "h2"), "runs": str(lab.folder / "r2"), "base_dir": None}
    )
    imported = import_run(packed, there)
    assert imported.new == exported.num_stages
    assert imported.has_code
    assert imported.environment == ()
    moved = ExperimentSettings.from_dict(imported.folder.manifest.settings)
    assert not moved.base_dir.startswith(str(here.base_dir))
    found = verify_run(fork.run_id, moved)
    assert found.is_sound
    assert found.remade.record.stage == "train"
    assert found.remade.code_changes == ()
    again = run_experiment({**small, "rl": {**small["rl"], "lr": 0.25}}, moved, name="tiny")
    assert again.cached > 0, "the same experiment reuses the imported stages"
