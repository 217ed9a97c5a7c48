"""Garbage collection removes unreferenced stages and never removes referenced ones."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.runs.garbage_collection import GarbageCollectionPlan, GarbageCollector, RetentionLimits
from flows.runs.references import Fork, References
from ratchet.errors import DataError, RunStateError
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.garbage_collection import GarbageKind, note_user
from ratchet.store.keys import stage_key
from ratchet.store.store import StageStore
from ratchet.tracking.boot_clock import BootTime
from ratchet.tracking.manifest import RunManifest, StageRecord
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_lock import RunLock

CODE = Fingerprint.from_modules({"trainers.one": "1" * 64})
NOW = RetentionLimits(older_than=0)


def noted(tmp_path: Path, url: str | None = None) -> StageStore:
    """Create a store with the runs folder registered."""
    store = StageStore(url or tmp_path / "home" / "store", copies=tmp_path / "copies")
    (tmp_path / "runs").mkdir(exist_ok=True)
    note_user(store, tmp_path / "runs")
    return store


def memory() -> str:
    return f"memory://{uuid.uuid4().hex}/store"


def make(store: StageStore, branch: int, iteration: int, base: str | None, run: str = "r") -> str:
    """Store a training stage that depends on ``base``; return its key."""
    inputs: dict[str, str | int] = {} if base is None else {"base": base}
    parameters = {"branch": branch}
    key = stage_key("train", iteration, parameters, inputs, CODE.digest)
    with store.claim(key) as claim:
        if claim.existing is None:
            (claim.workdir / "state.bin").write_bytes(bytes(100 + branch))
            claim.commit(
                stage="train",
                iteration=iteration,
                parameters=parameters,
                inputs=inputs,
                fingerprint=CODE,
                run_id=run,
            )
    return key


def make_run(store: StageStore, runs: Path, name: str, keys: Sequence[str]) -> RunFolder:
    """Create the folder of a completed run with recorded stages."""
    folder = RunFolder.create(runs, RunManifest(run_id=name, name=name, status="completed"))
    note_user(store, runs)
    folder.record_stages(
        [
            StageRecord(stage="train", iteration=i, start_iteration=i - 1, key=key, hit=False)
            for i, key in enumerate(keys, 1)
        ]
    )
    return folder


def chain(store: StageStore, branch: int, length: int, run: str = "r") -> list[str]:
    keys: list[str] = []
    for iteration in range(1, length + 1):
        keys.append(make(store, branch, iteration, keys[-1] if keys else None, run))
    return keys


def collect(
    store: StageStore, tmp_path: Path, limits: RetentionLimits = NOW, **options: Any
) -> GarbageCollectionPlan:
    collector = GarbageCollector(store, tmp_path / "home", (), limits, **options)
    found = collector.plan()
    collector.remove(found)
    return found


def keys_of(found: GarbageCollectionPlan) -> set[str]:
    return {each.name for each in found.leftovers if each.kind is GarbageKind.STAGE}


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StageStore:
    return noted(tmp_path) if request.param == "folder" else noted(tmp_path, memory())


def test_stages_of_a_run_are_retained_with_all_their_inputs(
    store: StageStore, tmp_path: Path
) -> None:
    kept, gone = chain(store, 1, 4), chain(store, 2, 3)
    make_run(store, tmp_path / "runs", "a", kept[-1:])  # depends on the previous three
    found = GarbageCollector(store, tmp_path / "home", (), NOW).plan()
    assert keys_of(found) == set(gone)
    assert all(store.find(key) for key in gone), "listing must not delete stages"
    assert keys_of(collect(store, tmp_path)) == set(gone)
    assert [store.verify(key) for key in kept] == [[]] * 4
    assert {manifest.key for manifest in store.iterate()} == set(kept)
    assert collect(store, tmp_path).leftovers == []


def test_stages_shared_with_a_fork_are_retained_after_its_parent_is_deleted(
    store: StageStore, tmp_path: Path
) -> None:
    shared = chain(store, 1, 3)
    parent = make_run(store, tmp_path / "runs", "parent", shared)
    fork = make_run(store, tmp_path / "runs", "fork", ())
    stages = parent.manifest.stages
    Fork(parent="parent", iteration=3, stages=stages).write(fork.path)
    parent.delete()
    assert collect(store, tmp_path).leftovers == []
    fork.delete()
    assert keys_of(collect(store, tmp_path)) == set(shared)


def test_stages_are_selected_by_age_run_and_size(tmp_path: Path) -> None:
    store = noted(tmp_path)
    old, young = chain(store, 1, 2, "one"), chain(store, 2, 2, "two")
    make_run(store, tmp_path / "runs", "a", ())
    for number, key in enumerate(old):
        stamp = time.time() - 40 * 86400 + number
        os.utime(store.backend.folder.stage_path(key), (stamp, stamp))

    def look(**limits: Any) -> set[str]:
        return keys_of(
            GarbageCollector(store, tmp_path / "home", (), RetentionLimits(**limits)).plan()
        )

    assert look() == set(old), "the default age is one day"
    assert look(older_than=30 * 86400) == set(old)
    assert look(older_than=0, run="two") == set(young)
    assert look(older_than=0, free=1) == {old[0]}, "least recently used first"
    assert look(older_than=0, free=102) == set(old)
    assert look(older_than=0, down_to=store.size) == set()
    assert look(older_than=0, down_to=store.size - 150) == set(old)
    store.find(old[0])
    assert look(older_than=30 * 86400) == {old[1]}, "a cache hit counts as use"


def test_a_stage_recorded_after_the_listing_is_retained(store: StageStore, tmp_path: Path) -> None:
    keys = chain(store, 1, 3)
    run = make_run(store, tmp_path / "runs", "a", ())
    collector = GarbageCollector(store, tmp_path / "home", (), NOW)
    found = collector.plan()
    assert keys_of(found) == set(keys)
    run.record_stages([StageRecord(stage="train", iteration=2, key=keys[1], hit=True)])
    assert [each.name for each in collector.remove(found)] == keys[2:]
    assert [store.verify(key) for key in keys[:2]] == [[], []]


def test_a_stage_used_or_claimed_after_the_listing_is_retained(tmp_path: Path) -> None:
    store = noted(tmp_path)
    used, claimed, gone = (make(store, branch, 1, None) for branch in (1, 2, 3))
    make_run(store, tmp_path / "runs", "a", ())
    collector = GarbageCollector(store, tmp_path / "home", (), NOW)
    found = collector.plan()
    StageStore(tmp_path / "home" / "store").find(used)
    lock = store.backend.folder.lock(claimed)
    assert lock.try_acquire()
    assert [each.name for each in collector.remove(found)] == [gone]
    lock.release()
    assert store.verify(used) == store.verify(claimed) == []


def test_recently_used_stages_are_retained_during_a_run(tmp_path: Path) -> None:
    store = noted(tmp_path)
    key = make(store, 1, 1, None)
    presence = RunLock(make_run(store, tmp_path / "runs", "a", ()).path)
    assert collect(store, tmp_path).leftovers == [], "the run may be about to record it"
    presence.release()
    assert keys_of(collect(store, tmp_path)) == {key}


def test_a_damaged_run_or_a_missing_runs_folder_stops_collection(tmp_path: Path) -> None:
    store = StageStore(tmp_path / "home" / "store")
    key = make(store, 1, 1, None)
    with pytest.raises(RunStateError, match="no runs folder is registered"):
        GarbageCollector(store, tmp_path, (), NOW)
    run = make_run(store, tmp_path / "runs", "a", [key])
    assert collect(store, tmp_path).leftovers == []
    (run.path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="not a run's manifest"):
        collect(store, tmp_path)
    (tmp_path / "runs").rename(tmp_path / "moved")
    with pytest.raises(RunStateError, match="is not accessible here") as error:
        collect(store, tmp_path)
    assert f"--unregister {tmp_path / 'runs'}" in str(error.value)
    assert keys_of(collect(store, tmp_path, forget=[str(tmp_path / "runs")])) == {key}


def test_a_replaced_runs_folder_stops_collection(tmp_path: Path) -> None:
    store, runs = noted(tmp_path), tmp_path / "runs"
    key = make(store, 1, 1, None)
    make_run(store, runs, "a", [key])
    runs.rename(tmp_path / "moved")
    runs.mkdir()  # as if a disk is not mounted
    for _ in range(2):
        with pytest.raises(RunStateError, match="name may differ"):
            collect(store, tmp_path)
        note_user(store, runs)  # a run has been started there
    collector = GarbageCollector(store, tmp_path, (tmp_path / "moved",), NOW, forget=[str(runs)])
    assert collector.remove(collector.plan()) == []
    make_run(store, runs, "b", [key])
    shutil.rmtree(tmp_path / "moved")
    assert collect(store, tmp_path, forget=[str(tmp_path / "moved"), str(runs)]).leftovers == []


def test_unreadable_runs_stop_collection(tmp_path: Path) -> None:
    store = noted(tmp_path)
    run = make_run(store, tmp_path / "runs", "a", [make(store, 1, 1, None)])
    elsewhere = run.path.rename(tmp_path / "a")
    run.path.symlink_to(elsewhere)
    assert collect(store, tmp_path).leftovers == []
    elsewhere.rename(tmp_path / "unmounted")
    with pytest.raises(DataError, match="runs/a: cannot be read"):
        collect(store, tmp_path)
    (tmp_path / "unmounted").rename(elsewhere)
    with pytest.raises(DataError, match="typo: cannot be read"):
        GarbageCollector(store, tmp_path, (tmp_path / "typo",), NOW).plan()


def test_runs_of_other_users_without_read_permission_stop_collection() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        store = noted(folder)
        run = make_run(store, folder / "runs", "a", [make(store, 1, 1, None)])
        run.path.chmod(0)
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(DataError, match="Permission denied"):
                References(store, [folder / "runs"]).needed()
        finally:
            os.seteuid(os.getuid())
            run.path.chmod(0o755)


def test_leftovers_of_killed_processes_are_removed_and_paid_work_is_retained(
    tmp_path: Path,
) -> None:
    store, home = noted(tmp_path), tmp_path / "home"
    key, run = make(store, 1, 1, None), make_run(store, tmp_path / "runs", "a", ())
    run.record_stages([StageRecord(stage="train", iteration=1, key=key, hit=False)])
    for letter in "be":
        (store.backend.folder.root / "work" / f"{letter * 64}.dead").mkdir()
    (store.backend.folder.root / "damaged" / f"{'c' * 64}-1").mkdir()
    aside = [run.path / f".manifest.json.{name}.tmp" for name in ("old", "new")]
    torn = tmp_path / "runs" / ".import-x.tmp"
    (torn / "far-1").mkdir(parents=True)
    for file in aside:
        file.write_text("{")
    foreign = tmp_path / "runs" / "notes" / ".draft.tmp"
    foreign.parent.mkdir()
    foreign.write_text("mine")
    for old in (aside[0], torn, foreign):
        os.utime(old, (time.time() - 7200,) * 2)
    for name in (key, "d" * 64):
        (home / "journals").mkdir(exist_ok=True)
        (home / "journals" / f"{name}.jsonl").write_text("{}\n")
        (home / "checkpoints" / f"{name}@3").mkdir(parents=True)
        (home / "checkpoints" / f"{name}@3" / "state").write_text("x")
    (home / "checkpoints" / "my-own-run").mkdir()
    kinds = [GarbageKind.WORK, GarbageKind.DAMAGED, GarbageKind.TEMPORARY]
    both = [GarbageKind.JOURNAL, GarbageKind.CHECKPOINT]
    collector = GarbageCollector(store, home, (), NOW)
    found = collector.plan()
    assert {each.kind for each in found.leftovers} == {*kinds, *both}
    assert collector.remove(found) == found.leftovers
    assert not aside[0].exists()
    assert not torn.exists()
    assert foreign.exists(), "it belongs to no run"
    assert aside[1].exists(), "its writer may be alive"
    assert [path.stem for path in (home / "journals").iterdir()] == ["d" * 64]
    names = {path.name for path in (home / "checkpoints").iterdir()}
    assert names == {f"{'d' * 64}@3", "my-own-run"}
    assert [e.kind for e in collect(store, tmp_path).leftovers] == [], "unfinished work is retained"
    found = collect(store, tmp_path, RetentionLimits(older_than=0, unfinished=True))
    assert {each.kind for each in found.leftovers} == set(both)
    assert [path.name for path in (home / "checkpoints").iterdir()] == ["my-own-run"]


def test_responses_paid_during_collection_are_retained(tmp_path: Path) -> None:
    store, home = noted(tmp_path), tmp_path / "home"
    journal = home / "journals" / f"{'d' * 64}.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text("{}\n")
    os.utime(journal, (time.time() - 7200,) * 2)
    collector = GarbageCollector(store, home, (), RetentionLimits(older_than=60, unfinished=True))
    found = collector.plan()
    assert [each.kind for each in found.leftovers] == [GarbageKind.JOURNAL]
    with journal.open("a") as file:
        file.write("{}\n")
    assert collector.remove(found) == []
    assert journal.exists()


def test_partial_uploads_and_local_copies_of_a_remote_store_are_removed(tmp_path: Path) -> None:
    store = noted(tmp_path, memory())
    key, other = make(store, 1, 1, None), make(store, 2, 1, None)
    make_run(store, tmp_path / "runs", "a", [key])
    fs: Any = store.backend._fs  # type: ignore[attr-defined]
    for each in (key, other):
        root = store.location.removeprefix("memory:/")
        name = f"{root}/stages/{each}/manifest.json"
        fs.rm_file(name)  # as after an interrupted upload or removal
    found = collect(store, tmp_path)
    assert {(each.kind, each.name) for each in found.leftovers} == {(GarbageKind.PART, other)}
    assert list(store.backend.keys()) == [key], "the run's stage may still be uploading"
    assert collect(store, tmp_path).leftovers == []


KILLED = """
import os, signal, sys
from pathlib import Path
from ratchet.store import local
from flows.runs.garbage_collection import GarbageCollector, RetentionLimits
from ratchet.store.store import StageStore

home, moment = Path(sys.argv[1]), int(sys.argv[2])
calls = [0]
for module, name in ((os, "rename"), (local.shutil, "rmtree"), (os, "unlink")):
    def counted(*args, real=getattr(module, name), **kwargs):
        calls[0] += 1
        if calls[0] == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    setattr(module, name, counted)
collector = GarbageCollector(StageStore(home / "store"), home, (), RetentionLimits(older_than=0))
collector.remove(collector.plan())
"""


def test_a_killed_collection_leaves_an_intact_store(tmp_path: Path) -> None:
    """Kill a removal at each of its first steps; a later collection removes the rest."""
    store = noted(tmp_path)
    kept, gone = chain(store, 1, 2), chain(store, 2, 2)
    make_run(store, tmp_path / "runs", "a", kept)
    codes = []
    for moment in (1, 2, 3):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "home"), str(moment)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        codes.append(done.returncode)
        fresh = StageStore(tmp_path / "home" / "store")
        fresh.backend.folder.clean()
        for manifest in fresh.iterate():
            assert fresh.verify(manifest.key) == []
        left = {manifest.key for manifest in fresh.iterate()}
        assert left >= set(kept)
        if moment == 2:
            assert left >= set(gone), "it was set aside, but its removal was not confirmed"
        gone = chain(fresh, 2, 2)
    assert codes == [-signal.SIGKILL] * 3
    assert keys_of(collect(store, tmp_path)) == set(gone)


ACTION = st.tuples(
    st.sampled_from(["run", "fork", "delete", "collect"]),
    st.integers(0, 5),
    st.integers(0, 4),
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=st.lists(ACTION, min_size=3, max_size=14), remote=st.booleans())
def test_remaining_runs_keep_their_stages_after_any_sequence_of_actions(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int, int]], remote: bool
) -> None:
    folder = tmp_path_factory.mktemp("any")
    store = noted(folder, memory() if remote else None)
    runs = [folder / "runs", folder / "others"]
    present: dict[str, list[str]] = {}
    for number, (what, first, second) in enumerate(actions):
        name, names = f"r{number}", sorted(present)
        place = runs[second % 2]
        if what == "run":
            place.mkdir(exist_ok=True)
            note_user(store, place)
            present[name] = chain(store, first, second, name)
            make_run(store, place, name, present[name])
        elif what == "fork" and names:
            parent = names[first % len(names)]
            shared = present[parent][: second % (len(present[parent]) + 1)]
            own = [make(store, number + 10, len(shared) + 1, shared[-1] if shared else None, name)]
            made = make_run(store, place, name, own)
            records = [StageRecord(stage="train", key=key, hit=True) for key in shared]
            Fork(parent=parent, iteration=len(shared), stages=records).write(made.path)
            present[name] = [*shared, *own]
        elif what == "delete" and names:
            gone = names[first % len(names)]
            (path,) = (each / gone for each in runs if (each / gone).exists())
            RunFolder(path).delete()
            del present[gone]
        elif what == "collect" and any(each.exists() for each in runs):
            collect(store, folder)
            needed = {key for keys in present.values() for key in keys}
            assert {manifest.key for manifest in store.iterate()} == needed
        for keys in present.values():
            assert [store.verify(key) for key in keys] == [[] for _ in keys]
    seen = [place for place in runs if place.exists()]
    assert References(store, seen).needed() == {key for keys in present.values() for key in keys}


def test_a_jump_of_the_clock_makes_no_stage_old(tmp_path: Path, monkeypatch: Any) -> None:
    """Stages that were used an hour ago stay, even if the clock was set forward by a month."""
    store = noted(tmp_path)
    keys = chain(store, 1, 2)
    folder = make_run(store, tmp_path / "runs", "r", [])
    folder.update(started=BootTime.now())
    real, month = time.time, 30 * 86400
    monkeypatch.setattr(time, "time", lambda: real() + month)

    def planned() -> int:
        limits = RetentionLimits(older_than=86400)
        collector = GarbageCollector(store, tmp_path / "home", [tmp_path / "runs"], limits)
        return len(collector.plan().leftovers)

    assert planned() == 0
    folder.update(started=None)
    assert planned() == len(keys)
