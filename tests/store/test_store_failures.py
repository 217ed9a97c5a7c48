"""A full disk or an unwritable store: errors contain path, reason and advice."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import RatchetError, StoreError
from ratchet.store import local
from ratchet.store.store import StageStore

Start = Callable[..., "subprocess.Popen[str]"]


def is_empty(folder: str | Path) -> bool:
    return not any(
        any(Path(folder, name).iterdir())
        for name in ("stages", "work")
        if Path(folder, name).is_dir()
    )


def test_a_limit_on_file_size_stops_the_body(store: StageStore, stage: Any, script: Start) -> None:
    """A real write error: the kernel refuses more than 4 kB in one file."""
    source = """
        import resource, sys
        from conftest import StageForTest
        from ratchet.errors import StoreError
        from ratchet.store.store import StageStore
        store, stage = StageStore(sys.argv[1]), StageForTest()
        store.check_writable()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            stage.make(store)
        except StoreError as error:
            print(error)
    """
    output, errors = script(source, store.location).communicate(timeout=300)
    assert errors == ""
    assert "File too large [EFBIG]" in output
    assert str(store.location) in output
    assert "ulimit -f" in output
    assert is_empty(store.location)
    stage.make(store)


def test_a_full_device_stops_the_body(store: StageStore, stage: Any, script: Start) -> None:
    """A real full disk, if a small one can be mounted."""
    source = """
        import os, subprocess, sys
        from conftest import StageForTest
        from ratchet.errors import StoreError
        from ratchet.store.store import StageStore
        place = sys.argv[1]
        os.makedirs(place)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place]).returncode:
            sys.exit(77)
        stage = StageForTest()
        def fails(store, body):
            try:
                with store.claim(stage.key) as claim:
                    body(claim)
                    stage.write(claim)
            except StoreError as error:
                print(error)
        store = StageStore(place, reserve_bytes=0)
        fails(store, lambda claim: (claim.workdir / "big").write_bytes(bytes(200_000)))
        fails(store, lambda claim: (claim.workdir / "fill").write_bytes(bytes(40_960)))
        fails(StageStore(place), lambda claim: None)
        print(os.listdir(place + "/stages"), os.listdir(place + "/work"))
        stage.make(store)
        print(store.verify(stage.key))
    """
    probe = ["unshare", "--mount", "true"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("mounting needs additional rights")
    process = script(
        """
        import os, sys
        os.execvp("unshare", ["unshare", "--mount", sys.executable, "-c", *sys.argv[1:]])
        """,
        textwrap.dedent(source),
        store.location,
    )
    output, errors = process.communicate(timeout=300)
    if process.returncode == 77:
        pytest.skip("no tmpfs can be mounted")
    lines = output.splitlines()
    assert len(lines) == 5, (output, errors)
    for line in lines[:2]:
        assert "No space left on device [ENOSPC]" in line
        assert "Free space there, or choose another location with the setting `store`" in line
        assert store.location in line
    assert "bytes free, expected at least" in lines[2]
    assert lines[3:] == ["[] []", "[]"]


@pytest.mark.parametrize("name", ["fsync", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_failing_flush_or_rename_stores_nothing(
    store: StageStore, stage: Any, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    with store.claim(stage.key) as claim, monkeypatch.context() as patch:

        def refuse(*arguments: object) -> None:
            raise OSError(number, os.strerror(number))

        patch.setattr(os, name, refuse)
        with pytest.raises(StoreError) as caught:
            stage.write(claim)
    message = str(caught.value)
    assert f"[{errno.errorcode[number]}]" in message
    assert os.strerror(number) in message
    assert store.location in message
    assert stage.key in message
    assert "run the same command again" in message
    assert caught.value.errno == number
    assert isinstance(caught.value, OSError)
    assert store.find(stage.key) is None
    assert is_empty(store.location)
    stage.make(store)
    assert store.verify(stage.key) == []


def test_a_device_error_in_the_body_is_a_store_error(store: StageStore, stage: Any) -> None:
    full = pytest.raises(StoreError, match=r"No space left on device \[ENOSPC\]")
    with full as caught, store.claim(stage.key):
        Path("/dev/full").write_text("x")
    assert "/work/" in str(caught.value)
    assert is_empty(store.location)


def test_other_errors_in_the_body_propagate(store: StageStore, stage: Any) -> None:
    with pytest.raises(FileNotFoundError) as caught, store.claim(stage.key):
        raise FileNotFoundError(errno.ENOENT, "no such data", "data.csv")
    assert not isinstance(caught.value, RatchetError)
    with pytest.raises(OSError, match=r"elsewhere") as other, store.claim(stage.key):
        raise OSError(errno.ENOSPC, "full", "/elsewhere/file")
    assert not isinstance(other.value, RatchetError)


@pytest.mark.parametrize("where", ["the store", "a parent", "stages"])
def test_a_file_instead_of_a_folder(tmp_path: Path, stage: Any, where: str) -> None:
    path = {
        "the store": tmp_path / "store",
        "a parent": tmp_path,
        "stages": tmp_path / "store" / "stages",
    }[where]
    if where == "a parent":
        path = tmp_path / "file"
    path.parent.mkdir(exist_ok=True)
    path.write_text("in the way")
    place = path / "deeper" if where == "a parent" else tmp_path / "store"
    store = StageStore(place)
    with pytest.raises(StoreError) as caught:
        stage.make(store)
    assert str(path) in str(caught.value)
    assert "A file has the name of an expected folder" in str(caught.value)
    with pytest.raises(StoreError):
        store.check_writable()
    assert path.read_text() == "in the way"


def test_too_many_open_files_are_not_damage(
    store: StageStore, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An intact stage must not be removed because it can't be read now."""
    stage.make(store)

    def refuse(path: Path) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(local, "hash_file", refuse)
        with pytest.raises(StoreError, match="ulimit -n"):
            StageStore(store.location).find(stage.key)
    assert StageStore(store.location).find(stage.key) is not None


def test_too_little_space_is_an_error_before_the_work(tmp_path: Path, stage: Any) -> None:
    store = StageStore(tmp_path / "store", reserve_bytes=1 << 60)
    with pytest.raises(StoreError, match="bytes free, expected at least"), store.claim(stage.key):
        raise AssertionError("the work began")
    with pytest.raises(StoreError, match="bytes free"):
        store.check_writable()


def test_a_writable_store_passes_the_check(store: StageStore) -> None:
    store.check_writable()
    assert is_empty(store.location)


def test_an_empty_location_is_refused() -> None:
    with pytest.raises(StoreError, match="empty"):
        StageStore("")


def test_a_new_store_and_a_commit_are_flushed_to_the_disk(
    store: StageStore, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must lose neither a file nor the entry of a folder that has been renamed."""
    flushed: list[Path] = []
    real = os.fsync

    def note(descriptor: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    stage.make(store)
    root = Path(store.location)
    assert {root, root.parent} <= set(flushed)
    assert flushed[-1] == root / "stages", "after the rename"
    work = [path.relative_to(root / "work") for path in flushed if root / "work" in path.parents]
    written = {"/".join(path.parts[1:]) for path in work}
    assert written == {"", "weights", "weights/agent.bin", "state.json", "manifest.json"}


def test_a_second_result_of_a_stage_does_not_replace_the_first(
    store: StageStore, stage: Any
) -> None:
    """Locks exclude this, but not those of a network folder whose server has restarted."""
    made = stage.make(store)
    work = store.backend.folder.make_work(stage.key)
    assert not store.backend.publish(work, stage.key, made)
    assert store.verify(stage.key) == []


def test_an_interrupted_note_leaves_the_earlier_one(
    store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.backend.write_note("a.json", b"first")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="full"):
        store.backend.write_note("a.json", b"second")
    assert store.backend.read_note("a.json") == b"first"
    assert store.backend.note_names() == ["a.json"]
