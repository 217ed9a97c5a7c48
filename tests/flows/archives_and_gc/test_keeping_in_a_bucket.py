"""``gc``, ``export``, ``import`` and ``doctor`` with a store in a bucket, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli.main import app
from flows.process.checks.base import CheckResult, Installation
from flows.process.checks.machine import folders
from flows.runs.export import export_run
from flows.runs.import_run import import_run
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.garbage_collection import note_user
from ratchet.store.store import StageStore
from tests.flows.archives_and_gc.test_collecting import make, make_run
from tests.s3_server import BUCKET, S3Server

pytest.importorskip("moto")
pytest.importorskip("s3fs")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server().with_a_bucket() as server:
        yield server


def gc(tmp_path: Path, url: str, *arguments: str) -> Result:
    where = ["--home", str(tmp_path / "home"), "--store", url]
    return CliRunner().invoke(app, ["gc", *where, "--older-than", "0s", *arguments])


@pytest.mark.slow
def test_gc_removes_stages_that_are_neither_referenced_nor_claimed(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"s3://{BUCKET}/gc"
    store = StageStore(url)
    (tmp_path / "runs").mkdir()
    note_user(store, tmp_path / "runs")
    kept = [make(store, 0, 1, None)]
    kept.append(make(store, 0, 2, kept[0]))
    gone = [make(store, branch, 1, None) for branch in (1, 2, 3)]
    make_run(store, tmp_path / "runs", "kept", kept)
    told = gc(tmp_path, url)
    assert told.exit_code == 0, told.output
    assert len(list(store.iterate())) == 5, "listing must not delete stages"
    told = gc(tmp_path, url, "--free", "1B", "--delete")
    assert told.exit_code == 0, told.output
    assert len(list(store.iterate())) == 4

    other = StageStore(url, copies=tmp_path / "other")
    left = [key for key in gone if store.peek(key) is not None]
    other.remove(left[0])
    with other.claim(left[0]):  # being recomputed on a different machine
        told = gc(tmp_path, url, "--delete")
    assert told.exit_code == 0, told.output
    assert sorted(m.key for m in StageStore(url, copies=tmp_path / "third").iterate()) == sorted(
        kept
    )
    names = {
        request.split("/stages/")[1][:64] for request in server.asked("DELETE /ratchet/gc/stages/")
    }
    assert not names & set(kept)


def test_a_run_is_exported_from_a_bucket_and_imported_into_a_different_store(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = StageStore(f"s3://{BUCKET}/packed")
    keys = [make(store, 0, 1, None)]
    keys.append(make(store, 0, 2, keys[0]))
    run = make_run(store, tmp_path / "runs", "packed", keys[1:])
    run.update(settings={"store": store.location})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "unused cache"))
    exported = export_run("packed", tmp_path / "run.zip", tmp_path / "runs")
    assert exported.num_stages == 2, "including the input of its stage"
    there = ExperimentSettings(
        home=str(tmp_path / "home"),
        runs=str(tmp_path / "other runs"),
        store=f"s3://{BUCKET}/unpacked",
    )
    for new in (2, 0):
        done = import_run(exported.path, there)
        assert (done.new, done.num_present, done.other_bytes) == (new, 2 - new, ())
    other = StageStore(there.store_url, copies=tmp_path / "other")
    assert [other.verify(manifest.key) for manifest in other.iterate()] == [[], []]


def test_doctor_reports_problems_of_a_bucket(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def store(url: str) -> tuple[CheckResult, str]:
        found = {c.subject: c for c in folders(Installation(tmp_path, tmp_path, url))}["store"]
        return found.verdict, found.details

    verdict, details = store(f"s3://{BUCKET}/doctor")
    assert verdict is CheckResult.GOOD
    assert "claims work across machines" in details
    verdict, details = store("s3://another/doctor")
    assert verdict is CheckResult.BAD
    assert "bucket does not exist" in details
