"""Only one machine per object store computes a stage; a paused one overwrites no result."""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest

from ratchet.errors import StoreError
from ratchet.store.leases import Lease, LeaseRecord, LeaseStatus
from ratchet.store.objects import MemoryObjects, Objects, S3Objects, TaggedObject
from ratchet.store.store import StageStore

SHORT = 0.1
"""Seconds of a lease in tests that wait for its end; its holder is paused immediately."""


class Clock:
    """Changes only when a test sets it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(fsspec.filesystem("memory"))


@pytest.fixture
def path() -> str:
    return f"/{uuid.uuid4().hex}/manifest.json"


def lease(objects: Objects, path: str, machine: str, clock: Clock, seconds: float = 60.0) -> Lease:
    return Lease(objects, path, seconds=seconds, copies=machine, clock=clock)


def test_a_lease_expires_when_it_has_not_changed_for_its_length(
    objects: Objects, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = Clock(), Clock()
    one, two = lease(objects, path, "one", ours), lease(objects, path, "two", theirs, 30)
    assert one.take() is LeaseStatus.TAKEN
    assert two.take() is LeaseStatus.HELD
    ours.now = 1e9  # another machine's clock has no effect
    theirs.now = 59
    assert two.take(read_first=True) is LeaseStatus.HELD
    one.renew()
    theirs.now = 61
    assert two.take(read_first=True) is LeaseStatus.HELD
    theirs.now = 122
    assert two.take(read_first=True) is LeaseStatus.TAKEN
    assert two.generation == 2
    assert "whose lease has expired" in caplog.text


def test_a_paused_holder_notices_and_commits_nothing(objects: Objects, path: str) -> None:
    clock = Clock()
    one, two = lease(objects, path, "one", clock), lease(objects, path, "two", clock)
    assert (one.take(), two.take()) == (LeaseStatus.TAKEN, LeaseStatus.HELD)
    clock.now = 61
    assert two.take() is LeaseStatus.TAKEN
    assert not one.commit(b"mine")
    assert not one.held
    assert two.held
    assert two.commit(b"theirs")
    assert one.take() is LeaseStatus.FINISHED
    stored = objects.read(path)
    assert stored is not None
    assert stored.text == b"theirs"


def test_a_renewal_that_comes_late_gives_up(objects: Objects, path: str) -> None:
    clock = Clock()
    one, two = lease(objects, path, "one", clock), lease(objects, path, "two", clock)
    assert (one.take(), two.take()) == (LeaseStatus.TAKEN, LeaseStatus.HELD)
    clock.now = 61
    assert two.take() is LeaseStatus.TAKEN
    one.renew()
    one.release()
    assert not one.held
    assert two.commit(b"theirs")


def test_a_released_lease_is_free_immediately(objects: Objects, path: str) -> None:
    one, two = lease(objects, path, "one", Clock()), lease(objects, path, "two", Clock())
    assert one.take() is LeaseStatus.TAKEN
    one.release()
    assert two.take() is LeaseStatus.TAKEN


def test_a_dead_holder_of_the_same_local_locks_is_not_awaited(objects: Objects, path: str) -> None:
    assert lease(objects, path, "one", Clock()).take() is LeaseStatus.TAKEN
    assert lease(objects, path, "one", Clock()).take() is LeaseStatus.TAKEN


class LosesAnswers(Objects):
    """Executes a request and then reports a refusal, as after a client's retry."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.losing = True

    def read(self, path: str) -> TaggedObject | None:
        return self._objects.read(path)

    def create(self, path: str, text: bytes) -> str | None:
        tag = self._objects.create(path, text)
        return None if self.losing else tag

    def replace(self, path: str, text: bytes, tag: str) -> str | None:
        new = self._objects.replace(path, text, tag)
        return None if self.losing else new

    def remove(self, path: str, tag: str) -> None:
        self._objects.remove(path, tag)


def test_a_lost_response_is_not_a_refusal(objects: Objects, path: str) -> None:
    one = lease(LosesAnswers(objects), path, "one", Clock())
    assert one.take() is LeaseStatus.TAKEN
    one.renew()
    assert one.held
    assert one.commit(b"mine")
    stored = objects.read(path)
    assert stored is not None
    assert stored.text == b"mine"


KINDS = ["take", "renew", "commit", "release", "outwait", "kill"]
LONG = 1e6
"""Seconds of a lease that is not renewed during a test."""


@pytest.mark.parametrize("seed", range(20))
def test_the_first_manifest_stays_in_every_order_of_moves(seed: int) -> None:
    """Three machines, any order of moves: one manifest, from the lease's holder at that time."""
    chance = random.Random(seed)
    moves = [(chance.randrange(3), chance.choice(KINDS)) for _ in range(30)]
    objects = MemoryObjects(fsspec.filesystem("memory"))
    path, clock = f"/{uuid.uuid4().hex}/manifest.json", Clock()
    leases = [lease(objects, path, str(number), clock, LONG) for number in range(3)]
    killed: list[Lease] = []
    committed: list[bytes] = []
    for number, move in moves:
        one = leases[number]
        if move == "take" and not one.held:  # a supposed holder does not read
            assert (one.take() is LeaseStatus.FINISHED) == bool(committed)
        elif move == "renew":
            one.renew()
        elif move == "release":
            one.release()
        elif move == "commit" and one.held:
            text = f"manifest {number} {len(committed)}".encode()
            if one.commit(text):
                committed.append(text)
        elif move == "outwait":
            one.take()
            clock.now += LONG + 1
            one.take()
        elif move == "kill":  # its object still exists, like a paused process
            killed.append(one)
            leases[number] = lease(objects, path, str(number), clock, LONG)
    assert len(committed) <= 1
    if committed:
        stored = objects.read(path)
        assert stored is not None
        assert stored.text == committed[0]
    for one in leases + killed:
        one.release()


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., StageStore]:
    url = f"memory://{uuid.uuid4().hex}/store"

    def make(name: str, seconds: float = 60.0) -> StageStore:
        return StageStore(url, copies=tmp_path / name, lease_seconds=seconds)

    return make


def test_one_of_several_machines_computes_a_stage(
    machine: Callable[..., StageStore], stage: Any
) -> None:
    made: list[int] = []

    def work(number: int) -> object:
        with machine(str(number)).claim(stage.key) as claim:
            if claim.existing is not None:
                return claim.existing
            made.append(number)
            return stage.write(claim)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(work, range(6)))
    assert len(made) == 1
    assert found == found[:1] * 6


def test_a_second_machine_waits_and_reports_the_holder(
    machine: Callable[..., StageStore], stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    begun, waiting, holders = threading.Event(), threading.Event(), []

    def hold() -> None:
        with machine("one", 1.0).claim(stage.key) as claim:
            begun.set()
            assert waiting.wait(10)
            time.sleep(1.2)  # a renewed lease does not expire
            stage.write(claim)

    with ThreadPoolExecutor(1) as pool:
        one = pool.submit(hold)
        assert begun.wait(10)

        def on_wait(holder: str) -> None:
            holders.append(holder)
            waiting.set()

        with machine("two").claim(stage.key, on_wait=on_wait) as claim:
            assert claim.existing is not None
        one.result()
    assert "process" in holders[0]
    assert "this process takes over 1 seconds later" in caplog.text


def test_waiting_for_another_machine_can_be_cancelled(
    machine: Callable[..., StageStore], stage: Any
) -> None:
    with machine("one").claim(stage.key):
        with (
            pytest.raises(StoreError, match="is being computed by process"),
            machine("two").claim(stage.key, wait_seconds=0.05),
        ):
            raise AssertionError
        cancelled = threading.Event()
        with (
            pytest.raises(StoreError, match="stopped waiting"),
            machine("two").claim(
                stage.key, cancelled=cancelled, on_wait=lambda holder: cancelled.set()
            ),
        ):
            raise AssertionError


def test_a_failed_claim_is_released(machine: Callable[..., StageStore], stage: Any) -> None:
    with pytest.raises(KeyboardInterrupt), machine("one").claim(stage.key):
        raise KeyboardInterrupt
    with machine("two").claim(stage.key, wait_seconds=0.0) as claim:
        assert claim.existing is None
        stage.write(claim)


def paused(store: StageStore, key: str) -> Lease:
    """Let the lease of a held claim miss its renewals, as if the process were stopped."""
    held: Lease = store.backend._leases[key]  # type: ignore[attr-defined]
    held._ended.set()
    return held


def test_a_paused_holder_takes_the_result_of_another(
    machine: Callable[..., StageStore], stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = machine("one", SHORT), machine("two")
    with one.claim(stage.key) as claim:
        paused(one, stage.key)
        theirs = stage.make(two)
        (claim.workdir / "mine.txt").write_text("what only the loser has made")
        (claim.workdir / "state.json").write_text("with different content")
        mine = claim.commit(**stage.description)
    assert mine == theirs
    assert "another process has taken it over" in caplog.text
    for store in (one, two, machine("three")):
        assert store.find(stage.key) == theirs
        assert store.verify(stage.key) == [], "no file of the loser remains"


def test_a_late_upload_overwrites_nothing(
    machine: Callable[..., StageStore], stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machine("one", SHORT), machine("two")
    with one.claim(stage.key) as claim:
        paused(one, stage.key)
        theirs = stage.make(two)
        (claim.workdir / "state.json").write_text("with different content")
        monkeypatch.setattr(one.backend, "_withdraw", lambda *_: None)  # killed at that moment
        claim.commit(**stage.description)
    other = machine("three")
    assert other.find(stage.key) == theirs
    assert (other.open(stage.key) / "state.json").read_text() == '{"iteration": 3}'
    (left,) = other.verify(stage.key)
    assert left.endswith("state.json is not in the manifest")


def test_without_conditions_a_late_manifest_is_refused_if_files_can_only_be_created(
    machine: Callable[..., StageStore], stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryObjects, "supports_conditions", lambda *_: False)
    one, two = machine("one"), machine("two")
    with one.claim(stage.key) as claim:
        theirs = stage.make(two)
        (claim.workdir / "state.json").write_text("with different content")
        looks = iter([None, None])  # it reads before the other writes
        read = one.backend.read_manifest
        monkeypatch.setattr(one.backend, "read_manifest", lambda key: next(looks, read(key)))
        mine = claim.commit(**stage.description)
    assert mine == theirs
    assert machine("three").find(stage.key) == theirs


def test_without_conditions_a_manifest_written_during_the_upload_stays(
    machine: Callable[..., StageStore], stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryObjects, "supports_conditions", lambda *_: False)
    one, two = machine("one"), machine("two")
    backend: Any = one.backend
    upload, pipe = backend._upload, backend._fs.pipe_file
    monkeypatch.setattr(backend, "_upload", lambda *args: (upload(*args), stage.make(two)))
    overwrite = lambda path, text, **_: pipe(path, text)  # noqa: E731 -- knows no mode="create"
    monkeypatch.setattr(backend._fs, "pipe_file", overwrite)
    with one.claim(stage.key) as claim:
        (claim.workdir / "state.json").write_text("with different content")
        mine = claim.commit(**stage.description)
    assert mine == two.find(stage.key) == machine("three").find(stage.key)
    assert "state.json" in mine.files
    assert len(mine.files) == 2, "of the other"


def test_a_paused_holder_continues_if_the_other_gives_up(
    machine: Callable[..., StageStore], stage: Any
) -> None:
    one, two = machine("one", SHORT), machine("two")
    with one.claim(stage.key) as claim:
        paused(one, stage.key)
        with pytest.raises(ValueError, match="failed"), two.claim(stage.key):
            raise ValueError("failed")
        mine = stage.write(claim)
    assert machine("three").find(stage.key) == mine


def test_the_uploads_of_a_dead_holder_are_removed(
    machine: Callable[..., StageStore], stage: Any
) -> None:
    store = machine("one")
    fs: Any = fsspec.filesystem("memory")
    base = f"{store.location.removeprefix('memory:/')}/stages/{stage.key}"
    dead = LeaseRecord("t", 1, 0, SHORT, "elsewhere", 1, "gone")
    fs.pipe_file(f"{base}/manifest.json", dead.to_bytes())
    fs.pipe_file(f"{base}/{'ab' * 32}/state.json", b"half")
    assert store.peek(stage.key) is None
    assert store.find(stage.key) is None
    assert list(store.iterate()) == []
    stage.make(store)
    assert store.verify(stage.key) == []


def test_a_stage_in_progress_elsewhere_is_not_removed(
    machine: Callable[..., StageStore], stage: Any
) -> None:
    with machine("one").claim(stage.key) as claim:
        backend = machine("two").backend
        backend.folder.prepare()
        assert not backend.lock(stage.key).try_acquire()
        stage.write(claim)


def test_a_url_without_conditions_is_reported(
    machine: Callable[..., StageStore],
    stage: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = MemoryObjects.create

    def careless(self: MemoryObjects, path: str, text: bytes) -> str | None:
        self._fs.pipe_file(path, text)
        return "tag"

    monkeypatch.setattr(MemoryObjects, "create", careless)
    store = machine("one")
    made = stage.make(store)
    monkeypatch.setattr(MemoryObjects, "create", real)
    assert caplog.text.count("does not support conditional writes") == 1
    assert machine("two").find(stage.key) == made
    assert store.remove(stage.key)
    assert machine("two").find(stage.key) is None


def test_a_paused_remover_does_not_remove_the_files_of_another(
    machine: Callable[..., StageStore], stage: Any
) -> None:
    one, two = machine("one", SHORT).backend, machine("two")
    one.folder.prepare()
    lock = one.lock(stage.key)
    assert lock.try_acquire()
    held = one._leases[stage.key]  # type: ignore[attr-defined]
    held._ended.set()
    with two.claim(stage.key) as claim:
        held.renew()  # it notices the loss
        fs: Any = fsspec.filesystem("memory")
        uploaded = f"{two.location.removeprefix('memory:/')}/stages/{stage.key}/{'ab' * 32}/file"
        fs.pipe_file(uploaded, b"half")
        assert not one.discard(stage.key)
        assert fs.exists(uploaded)
        lock.release()
        made = stage.write(claim)
    assert two.find(stage.key) == made


class RefusesOnce(LosesAnswers):
    """Refuses the first change without executing it, as S3 does during a concurrent one."""

    def replace(self, path: str, text: bytes, tag: str) -> str | None:
        if self.losing:
            self.losing = False
            return None
        return self._objects.replace(path, text, tag)


def test_a_commit_that_is_refused_although_the_lease_is_held_is_repeated(
    objects: Objects, path: str
) -> None:
    refusing = RefusesOnce(objects)
    refusing.losing = False
    one = lease(refusing, path, "one", Clock())
    assert one.take() is LeaseStatus.TAKEN
    refusing.losing = True
    assert one.commit(b"mine")
    assert objects.read(path) is not None


@pytest.mark.parametrize("ignored", ["create", "replace"])
def test_a_server_that_ignores_a_condition_does_not_support_them(
    ignored: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = MemoryObjects(fsspec.filesystem("memory"))
    assert objects.supports_conditions(path)
    monkeypatch.setattr(objects, ignored, lambda *_: "tag")
    assert not objects.supports_conditions(path)


@pytest.mark.parametrize(
    ("status", "code", "refused"),
    [
        (404, "NoSuchKey", True),
        (409, "ConditionalRequestConflict", True),
        (412, "PreconditionFailed", True),
        (403, "AccessDenied", False),
        (404, "NoSuchBucket", False),
    ],
)
def test_only_failed_conditions_are_refusals(status: int, code: str, refused: bool) -> None:
    class ServerError(Exception):
        response: ClassVar = {
            "Error": {"Code": code},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }

    class FileSystem:
        def split_path(self, path: str) -> tuple[str, str, None]:
            return "bucket", path, None

        def call_s3(self, *_: object, **__: object) -> None:
            raise OSError("refused") from ServerError()

    objects = S3Objects(FileSystem())
    if refused:
        assert objects.replace("path", b"x", "tag") is None
    else:
        with pytest.raises(OSError, match="refused"):
            objects.replace("path", b"x", "tag")
