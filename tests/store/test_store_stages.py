"""Finished stages are complete; damaged ones are detected, quarantined and recomputed."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import StageKeyError, StoreError
from ratchet.store import local
from ratchet.store.garbage_collection import garbage_in_store
from ratchet.store.manifest import Manifest
from ratchet.store.store import Damage, StageStore


def test_a_committed_stage_is_found(store: StageStore, stage: Any) -> None:
    assert store.find(stage.key) is None
    made = stage.make(store)
    found = StageStore(store.location).find(stage.key)
    assert found == made
    assert found is not None
    assert (found.stage, found.iteration, found.start_iteration) == ("train", 3, 0)
    assert found.parameters == stage.description["parameters"]
    assert found.inputs == stage.description["inputs"]
    assert found.fingerprint == stage.description["fingerprint"]
    assert [point.iteration for point in found.metrics] == [1, 2, 3]
    assert set(found.files) == {"state.json", "weights/agent.bin"}
    assert found.size == store.size == 256 * 64 + 16
    folder = store.open(stage.key)
    assert folder == Path(store.location, "stages", stage.key)
    assert (folder / "weights" / "agent.bin").read_bytes() == bytes(range(256)) * 64
    assert store.verify(stage.key) == []


def test_a_stage_covers_no_iterations_unless_it_reports_its_start(
    store: StageStore, stage: Any
) -> None:
    with store.claim(stage.key) as claim:
        assert claim.commit(**stage.description).start_iteration == 3


def test_the_manifest_is_readable_json(store: StageStore, stage: Any) -> None:
    stage.make(store)
    content = json.loads((store.open(stage.key) / "manifest.json").read_text())
    assert content["schema"] == 1
    assert len(content["checksum"]) == 64
    assert content["key"] == stage.key
    assert content["files"]["state.json"]["size"] == 16
    assert content["fingerprint"]["modules"] == {"trainers.one": "1" * 64}


def test_numbers_without_json_form_survive(store: StageStore, stage: Any) -> None:
    with store.claim(stage.key) as claim:
        values = {"a": float("nan"), "b": float("-inf"), "c": 0.1}
        claim.commit(**stage.description, metrics=[{"iteration": 3, "values": values}])
    found = StageStore(store.location).find(stage.key)
    assert found is not None
    assert repr(found.metrics[0].values) == repr(values)


def test_a_claim_of_a_finished_stage_returns_it(store: StageStore, stage: Any) -> None:
    made = stage.make(store)
    with store.claim(stage.key) as claim:
        assert claim.existing == made
        with pytest.raises(StoreError, match="finished"):
            _ = claim.workdir
        with pytest.raises(StoreError, match="finished"):
            claim.commit(**stage.description)


def test_without_a_commit_nothing_is_stored(store: StageStore, stage: Any) -> None:
    with store.claim(stage.key) as claim:
        (claim.workdir / "a").write_text("a")
    with pytest.raises(KeyError), store.claim(stage.key) as claim:
        raise KeyError(claim.workdir.joinpath("a").write_text("a"))
    assert store.find(stage.key) is None
    assert list(store.iterate()) == []
    for name in ("work", "locks", "stages"):
        assert list(Path(store.location, name).iterdir()) == []


def test_a_commit_under_another_key_is_refused(store: StageStore, stage: Any) -> None:
    with store.claim("0" * 64) as claim, pytest.raises(StageKeyError, match=stage.key):
        claim.commit(**stage.description)


def test_only_plain_files_are_stored(store: StageStore, stage: Any, tmp_path: Path) -> None:
    with store.claim(stage.key) as claim:
        (claim.workdir / "link").symlink_to(tmp_path)
        with pytest.raises(StoreError, match="plain files"):
            claim.commit(**stage.description)
        (claim.workdir / "link").unlink()
        (claim.workdir / "manifest.json").write_text("{}")
        with pytest.raises(StoreError, match=r"manifest\.json"):
            claim.commit(**stage.description)
    assert store.find(stage.key) is None


def truncate(folder: Path) -> None:
    os.truncate(folder / "weights" / "agent.bin", 100)


def flip(folder: Path) -> None:
    path = folder / "weights" / "agent.bin"
    content = bytearray(path.read_bytes())
    content[7000] ^= 1
    path.write_bytes(content)


def lose_file(folder: Path) -> None:
    (folder / "state.json").unlink()


def lose_folder(folder: Path) -> None:
    shutil.rmtree(folder / "weights")


def put_folder_for_file(folder: Path) -> None:
    (folder / "state.json").unlink()
    (folder / "state.json").mkdir()


def put_link_for_file(folder: Path) -> None:
    (folder / "state.json").rename(folder / "other")
    (folder / "state.json").symlink_to("other")


def lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"")


def garble_manifest(folder: Path) -> None:
    with open(folder / "manifest.json", "ab") as file:
        file.write(b"\x00garbage")


def list_for_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("[1, 2]")


def edit_manifest(folder: Path) -> None:
    """Change a metric: still valid JSON of the right form."""
    path = folder / "manifest.json"
    text = path.read_text()
    assert '"loss": 0.5' in text
    path.write_text(text.replace('"loss": 0.5', '"loss": 0.6'))


def add_field(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "extra": 1}))


DAMAGES = [
    truncate,
    flip,
    lose_file,
    lose_folder,
    put_folder_for_file,
    put_link_for_file,
    lose_manifest,
    empty_manifest,
    garble_manifest,
    list_for_manifest,
    edit_manifest,
    add_field,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("same_process", [True, False])
def test_a_damaged_stage_is_quarantined_and_recomputed(
    store: StageStore,
    stage: Any,
    damages: list[Damage],
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    same_process: bool,
) -> None:
    stage.make(store)
    folder = store.open(stage.key)
    damage(folder)
    if not same_process:
        store = StageStore(store.location, on_damage=damages.append)
    problems = store.verify(stage.key)
    assert problems
    assert folder.exists(), "verify changes nothing"
    with caplog.at_level(logging.WARNING), store.claim(stage.key) as claim:
        assert claim.existing is None
        stage.write(claim)
    assert f"stage {stage.key}" in caplog.text
    assert "quarantined" in caplog.text
    aside = Path(store.location, "damaged", f"{stage.key}-1")
    assert aside.is_dir()
    assert damages == [Damage(stage.key, tuple(problems), str(aside))]
    assert store.verify(stage.key) == []
    assert store.find(stage.key) is not None


def test_all_damaged_stages_of_one_key_are_kept(
    store: StageStore, stage: Any, damages: list[Damage]
) -> None:
    for _ in range(3):
        stage.make(store)
        flip(store.open(stage.key))
        assert store.find(stage.key) is None
    names = [Path(damage.moved_to).name for damage in damages]
    assert names == [f"{stage.key}-{number}" for number in (1, 2, 3)]


def test_a_manifest_of_another_stage_is_damage(store: StageStore, new_stage: Any) -> None:
    one, two = new_stage(a=1), new_stage(a=2)
    one.make(store)
    two.make(store)
    shutil.copy(store.open(one.key) / "manifest.json", store.open(two.key))
    assert any("belongs to" in problem for problem in store.verify(two.key))
    assert store.find(two.key) is None


def test_a_newer_schema_is_not_damage(store: StageStore, stage: Any) -> None:
    manifest = stage.make(store)
    newer = manifest.model_copy(update={"schema_version": 2})
    (store.open(stage.key) / "manifest.json").write_bytes(newer.to_bytes())
    with pytest.raises(StoreError, match="schema 2"):
        store.find(stage.key)
    assert Path(store.location, "stages", stage.key).is_dir()
    assert list(garbage_in_store(store, frozenset())) == [], "another version may need it"


def test_extra_files_are_reported_and_harmless(store: StageStore, stage: Any) -> None:
    stage.make(store)
    (store.open(stage.key) / "notes.txt").write_text("mine")
    assert store.verify(stage.key) == ["notes.txt is not in the manifest"]
    assert store.find(stage.key) is not None


def test_repeated_use_reads_no_file_twice(
    store: StageStore, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.make(store)
    read: list[Path] = []
    hash_file = local.hash_file

    def counted(path: Path) -> str:
        read.append(path)
        return hash_file(path)

    monkeypatch.setattr(local, "hash_file", counted)
    for _ in range(3):
        assert store.find(stage.key) is not None
    assert len(read) == 2
    os.utime(store.open(stage.key) / "state.json", ns=(1, 1))
    assert store.find(stage.key) is not None
    assert len(read) == 4
    assert store.verify(stage.key) == []
    assert len(read) == 6


def test_iterate_peek_and_remove(store: StageStore, new_stage: Any) -> None:
    assert list(store.iterate()) == []
    assert store.size == 0
    stages = [new_stage(number=number) for number in range(4)]
    made = {stage.key: stage.make(store) for stage in stages}
    assert {manifest.key: manifest for manifest in store.iterate()} == made
    assert store.peek(stages[0].key) == made[stages[0].key]
    assert store.remove(stages[0].key)
    assert not store.remove(stages[0].key)
    assert store.peek(stages[0].key) is None
    assert store.find(stages[0].key) is None
    assert len(list(store.iterate())) == 3
    with pytest.raises(StoreError, match="not in"):
        store.open(stages[0].key)
    with pytest.raises(StoreError, match="cannot verify it"):
        store.verify(stages[0].key)


def test_a_listing_skips_damaged_stages(store: StageStore, new_stage: Any) -> None:
    one, two = new_stage(a=1), new_stage(a=2)
    one.make(store)
    two.make(store)
    garble_manifest(store.open(one.key))
    Path(store.location, "stages", "README").write_text("not a stage")
    assert [manifest.key for manifest in store.iterate()] == [two.key]


def test_paths_outside_a_stage_are_refused(store: StageStore, stage: Any) -> None:
    manifest = stage.make(store)
    entry = manifest.files["state.json"]
    for name in ("../state.json", "/etc/passwd", "a/../../b", "./a", "manifest.json"):
        evil = manifest.model_copy(update={"files": {name: entry}})
        (store.open(stage.key) / "manifest.json").write_bytes(evil.to_bytes())
        assert any("wrong fields" in problem for problem in store.verify(stage.key))
        assert store.find(stage.key) is None
        stage.make(store)


@pytest.mark.parametrize("form", ["{}", "file://{}", "local://{}"])
def test_a_folder_can_be_given_as_path_or_url(tmp_path: Path, stage: Any, form: str) -> None:
    store = StageStore(form.format(tmp_path / "s"))
    assert not (tmp_path / "s").exists(), "no folder is created before the first claim"
    stage.make(store)
    assert (tmp_path / "s" / "stages" / stage.key / "manifest.json").is_file()


def test_a_manifest_reads_what_it_wrote(store: StageStore, stage: Any) -> None:
    manifest = stage.make(store)
    assert Manifest.from_bytes(manifest.to_bytes(), stage.key) == manifest


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_an_invalid_manifest_is_damage_and_never_blocks(
    store: StageStore, stage: Any, kind: str
) -> None:
    stage.make(store)
    path = next(store.backend.folder.root.rglob(f"{stage.key}/manifest.json"))
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    store = StageStore(store.location)
    assert store.peek(stage.key) is None
    assert store.find(stage.key) is None
    assert not path.parent.exists(), "it is quarantined"


def test_a_claim_commits_once(store: StageStore, stage: Any) -> None:
    with store.claim(stage.key) as claim:
        stage.write(claim)
        for use in (lambda: claim.workdir, lambda: claim.commit(**stage.description)):
            with pytest.raises(StoreError, match="is finished and cannot be written again"):
                use()


def test_an_adopted_stage_must_match_its_manifest(
    store: StageStore, new_stage: Any, tmp_path: Path
) -> None:
    one, other = new_stage(seed=1), new_stage(seed=2)
    source = StageStore(tmp_path / "source")
    manifest = one.make(source)
    with store.claim(other.key) as claim, pytest.raises(StageKeyError, match="was claimed"):
        claim.adopt(manifest)
    with store.claim(one.key) as claim:
        shutil.copytree(source.open(one.key), claim.workdir, dirs_exist_ok=True)
        (claim.workdir / "manifest.json").unlink()
        (claim.workdir / "state.json").write_text("{}")
        with pytest.raises(StoreError, match="don't match its manifest"):
            claim.adopt(manifest)
        (claim.workdir / "state.json").write_text('{"iteration": 3}')
        assert claim.adopt(manifest) == manifest
    assert store.find(one.key) == manifest


def test_a_listing_sees_a_stage_that_was_stored_again(store: StageStore, stage: Any) -> None:
    first = stage.make(store)
    assert store.peek(stage.key) == first
    other = StageStore(store.location)
    assert other.remove(stage.key)
    time.sleep(0.002)  # times have milliseconds
    second = stage.make(other)
    assert second != first, "its time differs"
    assert store.peek(stage.key) == second
