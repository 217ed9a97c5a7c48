"""Large files of finished stages are removed and restored, despite kills at any point."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import StoreError
from ratchet.store.manifest import Manifest
from ratchet.store.objects import MemoryObjects
from ratchet.store.removed_files import files_put_back, remove_files
from ratchet.store.store import StageStore

NAME = "weights/agent.bin"
CONTENT = bytes(range(256)) * 64
KILLED = """
    import os, signal, sys
    from conftest import StageForTest
    from ratchet.store.local import LocalFolder
    from ratchet.store.removed_files import files_put_back, remove_files
    from ratchet.store.store import StageStore
    url, method, when = sys.argv[1:]
    store, stage = StageStore(url), StageForTest()

    def killed(self, *arguments):
        if when == "after":
            original(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    original = getattr(LocalFolder, method)
    if method != "put_back":
        setattr(LocalFolder, method, killed)
        remove_files(store, stage.key, ["weights/agent.bin"])
    remove_files(store, stage.key, ["weights/agent.bin"])
    setattr(LocalFolder, method, killed)
    with files_put_back(store, store.peek(stage.key)) as folder:
        (folder / "weights").mkdir()
        (folder / "weights" / "agent.bin").write_bytes(bytes(range(256)) * 64)
"""


@pytest.fixture(params=["folder", "conditional", "unconditional"])
def either(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StageStore:
    if request.param == "folder":
        return StageStore(tmp_path / "store")
    if request.param == "unconditional":
        monkeypatch.setattr(MemoryObjects, "supports_conditions", lambda *_: False)
    return StageStore(f"memory://{uuid.uuid4().hex}/store", copies=tmp_path / "copies")


def put_back(store: StageStore, manifest: Manifest, content: bytes = CONTENT) -> None:
    with files_put_back(store, manifest) as folder:
        (folder / "weights").mkdir()
        (folder / NAME).write_bytes(content)
        (folder / "state.json").write_text("other")


def test_a_stage_without_a_removed_file_stays_finished(either: StageStore, stage: Any) -> None:
    store, made = either, stage.make(either)
    text = made.to_bytes()
    assert b"removed" not in text
    assert remove_files(store, stage.key, [NAME])
    assert not list(store.backend.folder.root.rglob("agent.bin")), "neither is a copy"
    assert remove_files(store, stage.key, [NAME]), "it may be repeated"
    found = store.find(stage.key)
    assert found is not None
    assert found.files == made.files, "sizes and SHA-256 stay"
    assert (found.removed, found.size, found.metrics) == ((NAME,), 16, made.metrics)
    assert store.verify(stage.key) == []
    with store.claim(stage.key) as claim:
        assert claim.existing == found
    with pytest.raises(StoreError, match=r"train 3: weights/agent.bin .*`ratchet restore RUN 3`"):
        store.open(stage.key)
    assert sorted(p.name for p in store.open(stage.key, partial=True).rglob("*.*")) == [
        "manifest.json",
        "state.json",
    ]
    with pytest.raises(StoreError, match="with other bytes"):
        put_back(store, found, b"other")
    assert store.find(stage.key) == found
    put_back(store, found)
    assert store.find(stage.key) == made
    assert (store.open(stage.key) / NAME).read_bytes() == CONTENT
    assert store.backend.read_manifest(stage.key) == text
    assert store.verify(stage.key) == []


def test_another_machine_drops_its_copy(tmp_path: Path, stage: Any) -> None:
    url = f"memory://{uuid.uuid4().hex}/store"
    one, two = (StageStore(url, copies=tmp_path / name) for name in ("one", "two"))
    made = stage.make(one)
    assert (two.open(stage.key) / NAME).exists()
    assert remove_files(one, stage.key, [NAME])
    assert two.find(stage.key) is not None
    assert not (two.open(stage.key, partial=True) / NAME).exists()
    assert not list((tmp_path / "two").rglob("agent.bin"))
    put_back(two, made.model_copy(update={"removed": (NAME,)}))
    assert (one.open(stage.key) / NAME).read_bytes() == CONTENT


def test_a_stage_that_another_process_holds_stays(store: StageStore, stage: Any) -> None:
    made = stage.make(store)
    lock = store.backend.lock(stage.key)
    lock.acquire()
    assert not remove_files(StageStore(store.location), stage.key, [NAME])
    lock.release()
    assert store.find(stage.key) == made
    assert not remove_files(store, "0" * 64, [NAME]), "it does not exist"


@pytest.mark.parametrize(
    ("method", "when", "is_removed"),
    [
        ("replace_manifest", "before", False),
        ("replace_manifest", "after", True),
        ("delete_removed", "after", True),
        ("put_back", "before", True),
        ("put_back", "after", True),
    ],
)
def test_a_kill_leaves_a_sound_store(
    store: StageStore,
    stage: Any,
    script: Callable[..., Any],
    method: str,
    when: str,
    is_removed: bool,
) -> None:
    """SIGKILL before and after each change of the stage's folder."""
    made = stage.make(store)
    process = script(KILLED, store.location, method, when)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    found = store.find(stage.key)
    assert found is not None
    assert bool(found.removed) is is_removed
    assert store.verify(stage.key) == [], "a marked file that still exists is no damage"
    assert remove_files(store, stage.key, [NAME]), "the next removal finishes this one"
    assert not (store.open(stage.key, partial=True) / NAME).exists()
    put_back(store, made.model_copy(update={"removed": (NAME,)}))
    assert store.find(stage.key) == made
    StageStore(store.location).check_writable()  # cleans up after the killed process
    assert not list(Path(store.location, "work").iterdir())
