"""The store at an fsspec URL, in memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ratchet.errors import StoreError
from ratchet.store.objects import MemoryObjects
from ratchet.store.store import Damage, StageStore


class Remote:
    """A store in memory, and several machines' folders of copies."""

    def __init__(self, tmp_path: Path, damages: list[Damage]) -> None:
        self.url = f"memory://{uuid.uuid4().hex}/store"
        self.fs: Any = fsspec.filesystem("memory")
        self.tmp_path = tmp_path
        self.damages = damages

    def store(self, machine: str = "one") -> StageStore:
        return StageStore(self.url, copies=self.tmp_path / machine, on_damage=self.damages.append)

    def path(self, *parts: str) -> str:
        return "/".join([self.url.removeprefix("memory:/"), *parts])

    def file(self, key: str, name: str) -> str:
        """Return the path of a stage's file."""
        (path,) = (path for path in self.fs.find(self.path("stages", key)) if path.endswith(name))
        return str(path)


@pytest.fixture
def remote(tmp_path: Path, damages: list[Damage]) -> Remote:
    return Remote(tmp_path, damages)


def test_another_machine_finds_a_stage(remote: Remote, stage: Any) -> None:
    made = stage.make(remote.store())
    assert remote.fs.exists(remote.path("stages", stage.key, "manifest.json"))
    other = remote.store("two")
    assert other.peek(stage.key) == made
    weights = other.read_file(made, "weights/agent.bin")
    assert not (remote.tmp_path / "two").exists(), "peeking and reading one file fetch no stage"
    assert other.find(stage.key) == made
    folder = other.open(stage.key)
    assert folder.is_relative_to(remote.tmp_path / "two")
    assert (folder / "weights" / "agent.bin").read_bytes() == bytes(range(256)) * 64 == weights
    assert other.read_file(made, "weights/agent.bin") == weights
    assert other.read_file(made, "missing") is None
    assert other.verify(stage.key) == []
    assert [manifest.key for manifest in other.iterate()] == [stage.key]
    assert other.size == made.size


def test_a_refresh_checks_a_missing_stage_again(remote: Remote, stage: Any) -> None:
    asking = remote.store("two")
    assert asking.find(stage.key) is None
    made = stage.make(remote.store())
    assert asking.find(stage.key) is None, "a check costs a request"
    assert asking.find(stage.key, refresh=True) == made
    assert asking.find(stage.key) == made


def test_the_manifest_comes_last(
    remote: Remote, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload interrupted anywhere stores no stage, and the next one succeeds."""
    store = remote.store()
    calls: list[str] = []
    assert store.remove(stage.make(store).key), "conditions are tested once"
    for number in range(4):
        with monkeypatch.context() as patch:
            interrupt(patch, remote.fs, after=number, calls=calls)
            with pytest.raises(StoreError, match="No space left"):
                stage.make(store)
        assert remote.store("two").find(stage.key) is None
        assert list(remote.store("two").iterate()) == []
    stage.make(store)
    assert remote.store("two").find(stage.key) is not None
    assert remote.damages == []


def interrupt(patch: pytest.MonkeyPatch, fs: Any, *, after: int, calls: list[str]) -> None:
    """Let the file system accept ``after`` writes and then be full."""
    calls.clear()
    for name in ("put_file", "pipe_file"):
        real = getattr(fs, name)

        def counted(
            *arguments: Any, real: Callable[..., Any] = real, name: str = name, **options: Any
        ) -> Any:
            if len(calls) >= after:
                raise OSError(28, "No space left on device")
            calls.append(name)
            return real(*arguments, **options)

        patch.setattr(fs, name, counted)


def flip(fs: Any, path: str) -> None:
    content = bytearray(fs.cat_file(path))
    content[5] ^= 1
    fs.pipe_file(path, bytes(content))


@pytest.mark.parametrize(
    "damage",
    [
        lambda remote, key: flip(remote.fs, remote.file(key, "weights/agent.bin")),
        lambda remote, key: remote.fs.pipe_file(remote.file(key, "state.json"), b"{}"),
        lambda remote, key: remote.fs.rm_file(remote.file(key, "state.json")),
        lambda remote, key: remote.fs.pipe_file(remote.file(key, "manifest.json"), b"garbage"),
    ],
    ids=["flipped byte", "truncated", "missing", "manifest"],
)
def test_remote_damage_is_quarantined_and_recomputed(
    remote: Remote, stage: Any, damage: Callable[[Remote, str], None]
) -> None:
    stage.make(remote.store())
    damage(remote, stage.key)
    other = remote.store("two")
    assert other.verify(stage.key)
    with other.claim(stage.key) as claim:
        assert claim.existing is None
        stage.write(claim)
    assert [entry.key for entry in remote.damages] == [stage.key]
    assert remote.fs.exists(remote.path("damaged", f"{stage.key}-1"))
    assert remote.store("three").find(stage.key) is not None


def test_a_damaged_copy_is_fetched_again(remote: Remote, stage: Any) -> None:
    store = remote.store()
    stage.make(store)
    copy = store.open(stage.key) / "state.json"
    copy.write_text("{}")
    assert remote.store().open(stage.key) == copy.parent
    assert copy.read_text() == '{"iteration": 3}'
    assert remote.damages == []


def test_a_copy_is_not_fetched_twice(
    remote: Remote, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.make(remote.store())
    store = remote.store("two")
    store.open(stage.key)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("downloaded again")

    monkeypatch.setattr(remote.fs, "get_file", refuse)
    assert store.find(stage.key) is not None
    assert remote.store("two").find(stage.key) is not None


def test_removal_is_seen_by_others(remote: Remote, stage: Any) -> None:
    stage.make(remote.store())
    other = remote.store("two")
    assert other.find(stage.key) is not None
    remover = remote.store()
    assert remover.peek(stage.key) is not None
    assert remover.remove(stage.key)
    assert remover.peek(stage.key, allow_stale=True) is None
    assert other.peek(stage.key) is None
    assert other.find(stage.key) is None
    assert not remote.store().remove(stage.key)


def test_extra_files_are_reported(remote: Remote, stage: Any) -> None:
    store = remote.store()
    stage.make(store)
    remote.fs.pipe_file(remote.path("stages", stage.key, "notes.txt"), b"x")
    assert store.verify(stage.key) == ["notes.txt is not in the manifest"]


def test_a_manifest_damaged_in_transit_is_read_again(
    remote: Remote, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage.make(remote.store())
    reads: list[str] = []
    whole = type(remote.fs).cat_file

    def damaged_once(self: Any, path: str, *args: Any, **kwargs: Any) -> bytes:
        content: bytes = whole(self, path, *args, **kwargs)
        if not path.endswith("manifest.json"):
            return content
        reads.append(path)
        return content[:-9] + b"#" + content[-8:] if len(reads) == 1 else content

    monkeypatch.setattr(type(remote.fs), "cat_file", damaged_once)
    assert remote.store("two").peek(stage.key) == made
    assert len(reads) > 1
    assert remote.damages == []


def test_a_file_damaged_in_transit_is_downloaded_again(
    remote: Remote, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.make(remote.store())
    downloads: list[str] = []
    intact = remote.fs.get_file

    def damaged_once(path: str, target: str) -> None:
        intact(path, target)
        if path.endswith("state.json") and not downloads:
            downloads.append(path)
            Path(target).write_text("damaged")

    monkeypatch.setattr(remote.fs, "get_file", damaged_once)
    assert remote.store("two").verify(stage.key) == []
    assert downloads
    assert remote.damages == []


def test_a_copy_damaged_after_its_first_use_is_fetched_again(remote: Remote, stage: Any) -> None:
    stage.make(remote.store())
    store = remote.store("two")
    copy = store.open(stage.key) / "state.json"
    copy.write_text("{}")
    store.open(stage.key)
    assert copy.read_text() == '{"iteration": 3}'


def test_a_committed_stage_is_not_downloaded(
    remote: Remote, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = remote.store()
    monkeypatch.setattr(remote.fs, "get_file", None)
    stage.make(store)
    assert (store.open(stage.key) / "state.json").read_text() == '{"iteration": 3}'


def test_a_truncated_upload_is_no_stage(
    remote: Remote, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Object stores write atomically; other file systems may not."""
    monkeypatch.setattr(MemoryObjects, "supports_conditions", lambda *_: False)
    monkeypatch.setattr(remote.fs, "put_file", lambda _, path: remote.fs.pipe_file(path, b"short"))
    with pytest.raises(StoreError, match="has 5 bytes after the upload of"):
        stage.make(remote.store())
    assert remote.store("two").find(stage.key) is None


@pytest.mark.parametrize("at_url", [False, True], ids=["folder", "URL"])
def test_a_stage_is_restored_if_the_check_of_its_need_fails(
    remote: Remote, stage: Any, store: StageStore, at_url: bool
) -> None:
    store = remote.store() if at_url else store
    made = stage.make(store)

    def fail(last_used: float) -> bool:
        assert store.backend.read_manifest(stage.key) is None, "it is hidden during the check"
        raise ValueError("unreadable run")

    lock = store.backend.lock(stage.key)
    assert lock.try_acquire()
    with pytest.raises(ValueError, match="unreadable run"):
        store.backend.discard_unless(stage.key, fail)
    lock.release()
    assert store.find(stage.key, refresh=True) == made
    assert store.verify(stage.key) == []
