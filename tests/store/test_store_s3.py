"""Processes that share only a bucket, over real HTTP: one computes each stage."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec.asyn
import pytest

from ratchet.errors import StoreError
from ratchet.store.backend import store_errors
from ratchet.store.garbage_collection import note_user
from ratchet.store.objects import S3Objects, TaggedObject
from ratchet.store.removed_files import files_put_back, remove_files
from ratchet.store.store import StageStore
from tests.s3_server import BUCKET, S3Server

pytest.importorskip("moto")
pytest.importorskip("s3fs")

Start = Callable[..., "subprocess.Popen[str]"]
LENGTH = 3.0
"""Seconds of a lease: a busy machine must not miss all renewals in it."""
WORK = """
    import logging, os, sys, time
    from conftest import StageForTest
    from ratchet.store.store import StageStore
    url, copies, count, seconds, length = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    store = StageStore(url, copies=copies, lease_seconds=float(length))
    stage = StageForTest()
    with store.claim(stage.key) as claim:
        if claim.existing is None:
            print("working", flush=True)
            with open(count, "a") as file:
                file.write(f"{os.getpid()}\\n")
            time.sleep(float(seconds))
            (claim.workdir / "who.txt").write_text(copies)
            stage.write(claim)
    print((store.open(stage.key) / "who.txt").read_text(), flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server().with_a_bucket() as server:
        yield server


@pytest.fixture
def url(server: S3Server, request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/{request.node.name}"


@pytest.fixture
def machine(
    script: Start, server: S3Server, url: str, tmp_path: Path
) -> Callable[..., subprocess.Popen[str]]:
    """Start a process with a separate cache that computes the stage, or waits for it."""

    def start(name: str, seconds: float) -> subprocess.Popen[str]:
        copies, count = tmp_path / name, tmp_path / "count"
        home = str(tmp_path / f"{name}-home")
        return script(WORK, url, copies, count, seconds, LENGTH, HOME=home, **server.environment)

    return start


def expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line == word, (line, process.stderr.read() if process.stderr else "")


def the_end(process: subprocess.Popen[str]) -> tuple[str, str]:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output.strip().splitlines()[-1], errors


def workers(tmp_path: Path) -> int:
    return len((tmp_path / "count").read_text().splitlines())


def test_a_stage_costs_one_request_per_file_and_three_more(
    server: S3Server, url: str, new_stage: Any, tmp_path: Path
) -> None:
    store = StageStore(url, copies=tmp_path / "one")
    new_stage(first=True).make(store)  # conditions are tested once per process
    stage = new_stage()
    server.forget()
    made = stage.make(store)
    assert [request.split()[0] for request in server.requests] == ["GET"] + ["PUT"] * 4
    server.forget()
    assert store.open(stage.key).is_dir()
    assert store.peek(stage.key, allow_stale=True) == made
    assert server.requests == [], "its files are local"
    other = StageStore(url, copies=tmp_path / "two")
    assert other.find(stage.key) == made
    assert len(server.requests) == 1 + len(made.files)
    server.forget()
    assert other.peek(stage.key) == other.find(stage.key) == made
    assert len(server.requests) == 2, "one check, and one before use: its files are local"
    server.forget()
    third = new_stage(third=True)
    assert other.peek(third.key) is None
    assert other.peek(stage.key, allow_stale=True) == made
    assert len(server.requests) == 1, "recent stages are cached"
    third.make(store)
    server.forget()
    with other.claim(third.key) as claim:
        assert claim.existing is not None, "a claim checks again"
    server.forget()
    assert len(list(other.iterate())) == 3
    assert len(server.requests) == 4


def test_a_missing_bucket_is_reported_and_not_created(
    server: S3Server, stage: Any, tmp_path: Path
) -> None:
    store = StageStore("s3://another/store", copies=tmp_path)
    assert store.find(stage.key) is None
    with pytest.raises(StoreError, match="bucket does not exist"):
        stage.make(store)
    with pytest.raises(StoreError, match="bucket does not exist"):
        note_user(store, tmp_path)


def test_an_unreachable_server_is_reported() -> None:
    from botocore.exceptions import EndpointConnectionError

    with (
        pytest.raises(StoreError, match="could not read it in s3://b: EndpointConnectionError"),
        store_errors("read it", "s3://b"),
    ):
        raise EndpointConnectionError(endpoint_url="http://nowhere")


def test_the_server_refuses_writes_with_an_old_tag(server: S3Server, url: str) -> None:
    import fsspec

    objects, path = S3Objects(fsspec.filesystem("s3")), f"{url}/manifest.json"
    first = objects.create(path, b"first")
    assert first is not None
    assert objects.create(path, b"late") is None
    second = objects.replace(path, b"second", first)
    assert objects.replace(path, b"late", first) is None
    assert objects.read(path) == (b"second", second)


def test_a_removed_file_leaves_the_bucket_and_returns(
    server: S3Server, url: str, stage: Any, tmp_path: Path
) -> None:
    store, name = StageStore(url, copies=tmp_path / "one"), "weights/agent.bin"
    made = stage.make(store)
    content = (store.open(stage.key) / name).read_bytes()
    assert remove_files(store, stage.key, [name])
    other = StageStore(url, copies=tmp_path / "two")
    removed = other.find(stage.key)
    assert removed is not None
    assert removed.removed == (name,)
    assert other.read_file(removed, name) is None
    assert other.verify(stage.key) == []
    with files_put_back(other, removed) as folder:
        (folder / "weights").mkdir()
        (folder / name).write_bytes(content)
    assert store.find(stage.key) == made
    assert (store.open(stage.key) / name).read_bytes() == content


def test_a_late_upload_overwrites_nothing(
    server: S3Server, url: str, stage: Any, tmp_path: Path
) -> None:
    one = StageStore(url, copies=tmp_path / "one", lease_seconds=0.1)
    two = StageStore(url, copies=tmp_path / "two")
    with one.claim(stage.key) as claim:
        one.backend._leases[stage.key]._ended.set()  # type: ignore[attr-defined]  # paused
        theirs = stage.make(two)
        server.forget()
        (claim.workdir / "state.json").write_text("with different content")
        assert claim.commit(**stage.description) == theirs
    late = f"PUT /{BUCKET}/{url.removeprefix(f's3://{BUCKET}/')}/stages/{stage.key}/manifest.json"
    assert server.asked(late), "it was attempted"
    other = StageStore(url, copies=tmp_path / "three")
    assert other.find(stage.key) == theirs
    assert other.verify(stage.key) == []


@pytest.mark.slow
def test_two_machines_that_share_a_bucket_compute_a_stage_once(
    machine: Callable[..., subprocess.Popen[str]], tmp_path: Path, url: str
) -> None:
    started = [machine(name, 1.5 * LENGTH) for name in ("one", "two", "three")]
    ends = [the_end(process) for process in started]
    assert workers(tmp_path) == 1
    assert len({who for who, _ in ends}) == 1
    assert sum("waiting for process" in errors for _, errors in ends) == 2


@pytest.mark.slow
def test_a_killed_holder_is_taken_over(
    machine: Callable[..., subprocess.Popen[str]], tmp_path: Path, url: str, stage: Any
) -> None:
    one = machine("one", 60)
    expect(one, "working")
    two = machine("two", 0)
    time.sleep(0.5 * LENGTH)  # it is alive, and the other waits
    one.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    expect(two, "working")
    assert time.monotonic() - killed > 0.6 * LENGTH
    who, errors = the_end(two)
    assert who == str(tmp_path / "two")
    assert f"this process takes over {LENGTH:g} seconds later" in errors
    assert "taking over from process" in errors
    assert workers(tmp_path) == 2
    assert StageStore(url, copies=tmp_path / "three").verify(stage.key) == []


@pytest.mark.slow
def test_a_stopped_holder_overwrites_nothing(
    machine: Callable[..., subprocess.Popen[str]], tmp_path: Path, url: str, stage: Any
) -> None:
    one = machine("one", 0.5)
    expect(one, "working")
    one.send_signal(signal.SIGSTOP)
    try:
        two, _ = the_end(machine("two", 0))
        assert two == str(tmp_path / "two")
        theirs = StageStore(url, copies=tmp_path / "three")
        made = theirs.find(stage.key)
        assert made is not None
    finally:
        one.send_signal(signal.SIGCONT)
    who, errors = the_end(one)
    assert who == two, "the loser ends with the winner's result"
    assert "has lost it" in errors or "has taken it over" in errors
    assert theirs.find(stage.key) == made
    assert theirs.verify(stage.key) == []


@pytest.mark.parametrize(("interruptions", "is_read"), [(1, True), (4, True), (5, False)])
def test_an_interrupted_response_is_requested_again(interruptions: int, is_read: bool) -> None:
    left = [interruptions]

    class Body:
        async def read(self) -> bytes:
            left[0] -= 1
            if left[0] >= 0:
                raise TimeoutError("interrupted")
            return b"text"

    class FileSystem:
        loop = fsspec.asyn.get_loop()

        def split_path(self, path: str) -> tuple[str, str, None]:
            return "bucket", path, None

        async def _call_s3(self, *_: object, **__: object) -> dict[str, object]:
            return {"Body": Body(), "ETag": "tag"}

    objects = S3Objects(FileSystem())
    if is_read:
        assert objects.read("path") == TaggedObject(b"text", "tag")
    else:
        with pytest.raises(OSError, match="the response was interrupted"):
            objects.read("path")
