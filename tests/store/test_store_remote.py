"""The same promises at an fsspec URL, here in memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ratchet.errors import StoreError
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
        """Return where a stage's file lies."""
        (path,) = (path for path in self.fs.find(self.path("stages", key)) if path.endswith(name))
        return str(path)


@pytest.fixture
def remote(tmp_path: Path, damages: list[Damage]) -> Remote:
    return Remote(tmp_path, damages)


def test_another_machine_finds_what_one_has_made(remote: Remote, stage: Any) -> None:
    made = stage.make(remote.store())
    assert remote.fs.exists(remote.path("stages", stage.key, "manifest.json"))
    other = remote.store("two")
    assert other.peek(stage.key) == made
    assert not (remote.tmp_path / "two").exists(), "peeking downloads nothing"
    assert other.find(stage.key) == made
    folder = other.open(stage.key)
    assert folder.is_relative_to(remote.tmp_path / "two")
    assert (folder / "weights" / "agent.bin").read_bytes() == bytes(range(256)) * 64
    assert other.verify(stage.key) == []
    assert [manifest.key for manifest in other.iterate()] == [stage.key]
    assert other.size == made.size


def test_who_is_told_that_a_stage_is_there_looks_again(remote: Remote, stage: Any) -> None:
    asking = remote.store("two")
    assert asking.find(stage.key) is None
    made = stage.make(remote.store())
    assert asking.find(stage.key) is None, "a look costs a request"
    assert asking.find(stage.key, again=True) == made
    assert asking.find(stage.key) == made


def test_the_manifest_comes_last(
    remote: Remote, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload that is cut off anywhere leaves nothing that counts, and the next one works."""
    store = remote.store()
    calls: list[str] = []
    assert store.remove(stage.make(store).key), "conditions are tried once"
    for number in range(4):
        with monkeypatch.context() as patch:
            cut_off(patch, remote.fs, after=number, calls=calls)
            with pytest.raises(StoreError, match="No space left"):
                stage.make(store)
        assert remote.store("two").find(stage.key) is None
        assert list(remote.store("two").iterate()) == []
    stage.make(store)
    assert remote.store("two").find(stage.key) is not None
    assert remote.damages == []


def cut_off(patch: pytest.MonkeyPatch, fs: Any, *, after: int, calls: list[str]) -> None:
    """Let the file system take ``after`` writes and then be full."""
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
def test_remote_damage_is_set_aside_and_made_again(
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


def test_files_that_lie_as_earlier_versions_put_them_are_found(remote: Remote, stage: Any) -> None:
    made = stage.make(remote.store())
    for name in made.files:
        remote.fs.mv(remote.file(stage.key, name), remote.path("stages", stage.key, name))
    other = remote.store("two")
    assert other.find(stage.key) == made
    assert other.verify(stage.key) == []


def test_removal_is_seen_by_others(remote: Remote, stage: Any) -> None:
    stage.make(remote.store())
    other = remote.store("two")
    assert other.find(stage.key) is not None
    assert remote.store().remove(stage.key)
    assert other.peek(stage.key) is None
    assert other.find(stage.key) is None
    assert not remote.store().remove(stage.key)


def test_files_of_others_are_told(remote: Remote, stage: Any) -> None:
    store = remote.store()
    stage.make(store)
    remote.fs.pipe_file(remote.path("stages", stage.key, "notes.txt"), b"x")
    assert store.verify(stage.key) == ["notes.txt is not in the manifest"]


def test_a_manifest_that_is_damaged_on_its_way_is_read_again(
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
