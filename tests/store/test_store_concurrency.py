"""Only one of several processes computes a stage; a killed one does not block the others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import StoreError
from ratchet.store.locks import FileLock
from ratchet.store.store import Damage, StageStore

Start = Callable[..., "subprocess.Popen[str]"]

RACE = """
    import os, sys, time
    from conftest import StageForTest
    from ratchet.store.store import StageStore
    place, count = sys.argv[1:]
    store, stage = StageStore(place), StageForTest()
    print("ready", flush=True)
    while not os.path.exists(place + ".go"):
        time.sleep(0.001)
    with store.claim(stage.key) as claim:
        if claim.existing is None:
            with open(count, "a") as file:
                file.write(f"{os.getpid()}\\n")
            time.sleep(0.2)
            stage.write(claim)
    print(claim.existing.key)
"""
HOLD = """
    import os, sys, time
    from conftest import StageForTest
    from ratchet.store.store import StageStore
    store, stage = StageStore(sys.argv[1]), StageForTest()
    with store.claim(stage.key) as claim:
        (claim.workdir / "half").write_bytes(bytes(100_000))
        if sys.argv[2:] == ["fork"] and os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(60)
        print("holding", flush=True)
        time.sleep(60)
"""
STOP_WHEN = """
    import os, sys, time
    from conftest import StageForTest
    from ratchet.store.store import StageStore
    place, function, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store, stage = StageStore(place), StageForTest()
    real, calls = getattr(os, function), []
    def stopping(*arguments, **options):
        calls.append(arguments)
        if len(calls) == number:
            print("stopped", flush=True)
            time.sleep(60)
        return real(*arguments, **options)
    with store.claim(stage.key) as claim:
        setattr(os, function, stopping)
        stage.write(claim)
    print("finished", flush=True)
"""


def expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line == word, (line, process.stderr.read() if process.stderr else "")


def test_one_of_eight_processes_computes_a_stage(
    store: StageStore, stage: Any, script: Start, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    racers = [script(RACE, store.location, count) for _ in range(8)]
    for racer in racers:
        expect(racer, "ready")
    Path(store.location + ".go").touch()
    for racer in racers:
        output, errors = racer.communicate(timeout=300)
        assert output.strip() == stage.key, errors
    assert len(count.read_text().splitlines()) == 1
    assert store.verify(stage.key) == []
    assert list(Path(store.location, "work").iterdir()) == []
    assert list(Path(store.location, "locks").iterdir()) == []


def test_threads_of_one_process_exclude_each_other(store: StageStore, stage: Any) -> None:
    bodies: list[int] = []
    inside: list[int] = []

    def work(number: int) -> str:
        with store.claim(stage.key) as claim:
            if claim.existing is not None:
                return str(claim.existing.key)
            inside.append(number)
            assert len(inside) == 1
            bodies.append(number)
            time.sleep(0.05)
            manifest = stage.write(claim)
            inside.remove(number)
            return str(manifest.key)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(8))) == {stage.key}
    assert len(bodies) == 1


def test_coroutines_claim_in_threads(store: StageStore, stage: Any) -> None:
    async def race() -> list[str]:
        return [m.created for m in await asyncio.gather(*(use() for _ in range(4)))]

    async def use() -> Any:
        return await asyncio.to_thread(stage.make, store)

    assert len(set(asyncio.run(race()))) == 1


def test_claims_of_different_keys_do_not_wait(store: StageStore, new_stage: Any) -> None:
    with store.claim(new_stage(a=1).key), store.claim(new_stage(a=2).key, wait_seconds=0) as claim:
        assert claim.existing is None


def test_after_a_holder_fails_the_next_process_computes(store: StageStore, stage: Any) -> None:
    entered = threading.Event()

    def fail() -> None:
        with store.claim(stage.key):
            entered.set()
            time.sleep(0.1)
            raise KeyError("the body failed")

    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(fail)
        assert entered.wait(240)
        stage.make(store)
        with pytest.raises(KeyError, match="the body failed"):
            failing.result()
    assert store.find(stage.key) is not None


@pytest.mark.parametrize("fork", [False, True])
def test_a_killed_holder_blocks_no_process_and_leaves_no_files(
    store: StageStore, stage: Any, script: Start, fork: bool
) -> None:
    """Also if a forked child survives the process, such as a data loader."""
    holder = script(HOLD, store.location, *(["fork"] if fork else []))
    child = None
    if fork:
        assert holder.stdout is not None
        lines = [holder.stdout.readline().strip() for _ in range(2)]
        assert "holding" in lines
        lines.remove("holding")
        child = int(lines[0])
    else:
        expect(holder, "holding")
    try:
        told = pytest.raises(StoreError, match=f"process {holder.pid} on ")
        with told, store.claim(stage.key, wait_seconds=0):
            pass
        assert any(Path(store.location, "work").iterdir())
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        start = time.monotonic()
        with StageStore(store.location).claim(stage.key, wait_seconds=20) as claim:
            assert claim.existing is None
            names = [path.name for path in Path(store.location, "work").iterdir()]
            assert names == [claim.workdir.name], "the killed process's work is removed"
            assert list(claim.workdir.iterdir()) == []
            stage.write(claim)
        assert time.monotonic() - start < 10
        assert store.verify(stage.key) == []
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("function", "number"),
    [("fsync", 1), ("fsync", 2), ("fsync", 3), ("fsync", 4), ("rename", 1), ("fsync", 6)],
    ids=["file", "second file", "manifest", "folder", "rename", "after the rename"],
)
def test_a_stage_killed_anywhere_in_its_commit_is_complete_or_absent(
    store: StageStore, stage: Any, script: Start, damages: list[Damage], function: str, number: int
) -> None:
    process = script(STOP_WHEN, store.location, function, number)
    expect(process, "stopped")
    process.send_signal(signal.SIGKILL)
    process.wait()
    renamed = (function, number) == ("fsync", 6)
    assert (store.find(stage.key) is not None) is renamed
    with store.claim(stage.key, wait_seconds=20) as claim:
        assert (claim.existing is not None) is renamed
        if claim.existing is None:
            stage.write(claim)
    assert store.verify(stage.key) == []
    assert damages == []
    store.backend.folder.clean()
    assert list(Path(store.location, "work").iterdir()) == []


def test_cleaning_keeps_the_work_of_live_processes(store: StageStore, stage: Any) -> None:
    with store.claim(stage.key) as claim:
        (claim.workdir / "a").write_text("a")
        orphan = Path(store.location, "work", "e" * 64 + ".dead")
        orphan.mkdir()
        (orphan / "half").write_text("x")
        Path(store.location, "locks", "e" * 64 + ".lock").touch()
        assert StageStore(store.location).backend.folder.clean() == 1
        assert not orphan.exists()
        assert [path.name for path in Path(store.location, "locks").iterdir()] == [
            f"{stage.key}.lock"
        ]
        assert (claim.workdir / "a").exists()
        stage.write(claim)
    assert store.verify(stage.key) == []


def test_cleaning_keeps_the_probe_of_a_writability_check(
    store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.backend.folder
    make_work = folder.make_work

    def cleaned_at_once(name: str) -> Path:
        work = make_work(name)
        assert StageStore(folder.root).backend.folder.clean() == 0
        return work

    monkeypatch.setattr(folder, "make_work", cleaned_at_once)
    store.check_writable()
    assert list((folder.root / "work").iterdir()) == []
    assert list((folder.root / "locks").iterdir()) == []


def test_a_wait_is_reported_once_and_can_be_cancelled(store: StageStore, stage: Any) -> None:
    told: list[str] = []
    stop = threading.Event()
    with store.claim(stage.key), ThreadPoolExecutor(1) as pool:

        def wait() -> None:
            with store.claim(stage.key, cancelled=stop, on_wait=told.append):
                raise AssertionError("the claim was held")

        waiting = pool.submit(wait)
        time.sleep(0.1)
        assert told == [f"process {os.getpid()} on {os.uname().nodename}"]
        stop.set()
        with pytest.raises(StoreError, match="stopped waiting"):
            waiting.result(timeout=10)


def test_a_forked_child_does_not_end_its_parents_claim(store: StageStore, stage: Any) -> None:
    with contextlib.ExitStack() as stack:
        claim = stack.enter_context(store.claim(stage.key))
        (claim.workdir / "a").write_text("a")
        child = os.fork()
        if child == 0:
            try:
                stack.close()  # as an error in the child would
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert (claim.workdir / "a").exists()
        assert not FileLock(Path(store.location, "locks", f"{stage.key}.lock")).try_acquire()
        stage.write(claim)
    assert store.verify(stage.key) == []


def test_damage_seen_concurrently_is_quarantined_once(
    store: StageStore, stage: Any, damages: list[Damage]
) -> None:
    stage.make(store)
    (store.open(stage.key) / "state.json").write_text("{}")
    barrier = threading.Barrier(6)

    def use(_: int) -> str:
        barrier.wait()
        return str(stage.make(store).key)

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(use, range(6))) == {stage.key}
    assert len(damages) == 1
    assert store.verify(stage.key) == []


def test_a_lock_on_a_removed_file_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may release, and remove the file, between open and lock."""
    path = tmp_path / "a.lock"
    real, calls = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        calls.append(operation)
        if len(calls) == 1:
            path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    lock, other = FileLock(path), FileLock(path)
    assert lock.acquire(wait_seconds=10)
    assert not other.try_acquire()
    lock.release()
    assert other.try_acquire()
    other.release()


def test_many_short_claims_never_overlap(tmp_path: Path) -> None:
    """The lock's file is removed and created continually, and only one process holds it."""
    inside: list[int] = []
    overlaps: list[int] = []
    path = tmp_path / "a.lock"

    def work(number: int) -> None:
        for _ in range(60):
            lock = FileLock(path)
            assert lock.acquire(wait_seconds=60)
            inside.append(number)
            if len(inside) > 1:
                overlaps.append(number)
            time.sleep(0)
            inside.remove(number)
            lock.release()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert overlaps == []
    assert not path.exists()


def test_a_release_does_not_remove_the_file_of_the_next_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a third process would create the file again, and hold the lock too."""
    first, second, third = (FileLock(tmp_path / "a.lock") for _ in range(3))
    assert first.try_acquire()
    release = first._lock.release

    def release_to_the_next() -> None:
        release()
        assert second.try_acquire()

    monkeypatch.setattr(first._lock, "release", release_to_the_next)
    first.release()
    assert not third.try_acquire()
    second.release()


def test_a_lock_may_be_released_in_a_different_thread(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            lock = FileLock(path)
            assert pool.submit(lock.acquire).result(timeout=10)
            assert not FileLock(path).is_free()
            lock.release()
            assert FileLock(path).is_free()


def test_a_folder_without_flock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is a file's existence would outlive a killed holder."""

    def missing(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "flock")

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(OSError, match="flock"):
        FileLock(tmp_path / "a.lock").try_acquire()


def test_concurrent_tests_of_a_lock_do_not_see_each_other_as_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    path.touch()
    looking = path.open()
    fcntl.flock(looking, fcntl.LOCK_SH)  # as the other test does
    assert FileLock(path).is_free()
    assert path.read_text() == ""
    looking.close()
