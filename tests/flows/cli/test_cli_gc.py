"""``ratchet gc`` lists unused stages with their sizes, and deletes them with ``--delete``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli.garbage_collection import read_age, read_size, write_size
from flows.cli.main import app
from ratchet.errors import ParameterError
from ratchet.store.fingerprint import Fingerprint
from ratchet.store.garbage_collection import note_user
from ratchet.store.keys import stage_key
from ratchet.store.store import StageStore


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create an unused stage of 5,000 bytes; return its key."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    store = StageStore(tmp_path / ".ratchet" / "store")
    note_user(store, tmp_path / "runs")
    code = Fingerprint.from_modules({"trainers.one": "1" * 64})
    made = stage_key("train", 1, {}, {}, code.digest)
    with store.claim(made) as claim:
        (claim.workdir / "weights").write_bytes(bytes(5000))
        claim.commit(
            stage="train", iteration=1, parameters={}, inputs={}, fingerprint=code, run_id="gone"
        )
    return made


def ratchet(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["gc", *arguments])


def test_unused_stages_are_listed_and_then_deleted(key: str) -> None:
    store = StageStore(".ratchet/store")
    assert "To remove: 0 items" in ratchet().output, "it is less than a day old"
    listed = ratchet("--older-than", "0")
    assert listed.exit_code == 0, listed.output
    assert "1 items, 5.0 kB" in listed.output
    assert "--delete" in listed.output
    assert store.find(key) is not None
    (table,) = json.loads(ratchet("--older-than", "0", "--json").stdout)["tables"]
    (record,) = table["rows"]
    assert {name: record[name] for name in ("kind", "name", "bytes", "run")} == {
        "kind": "stage",
        "name": key,
        "bytes": 5000,
        "run": "gone",
    }
    assert "Removed: 1 items" in ratchet("--older-than", "0", "--delete").output
    assert store.find(key) is None
    assert ratchet("--older-than", "0", "--yes").exit_code == 0


def test_a_store_with_unknown_runs_is_not_changed(key: str) -> None:
    for note in Path(".ratchet/store/users").iterdir():
        note.unlink()
    refused = ratchet("--older-than", "0", "--delete")
    assert refused.exit_code != 0
    assert "Name all that use it with --runs-dir" in " ".join(refused.output.split())
    assert "Removed: 1" in ratchet("--older-than", "0", "--delete", "--runs-dir", "runs").output


def test_sizes_and_ages_are_parsed() -> None:
    sizes = [read_size(text) for text in ("12", "5kB", "1.5 GB", "2GiB", "3m")]
    assert sizes == [12, 5000, 1_500_000_000, 2 * 2**30, 3_000_000]
    ages = [read_age(text) for text in ("0", "90s", "30m", "12h", "30d", "2w")]
    assert ages == [0, 90, 1800, 43200, 30 * 86400, 14 * 86400]
    assert [write_size(size) for size in (12, 1500, 2.5e9, 3e12)] == [
        *("12 bytes", "1.5 kB", "2.5 GB", "3.0 TB")
    ]
    for wrong in ("", "five", "-1", "3x"):
        with pytest.raises(ParameterError, match="expected"):
            read_size(wrong)
        with pytest.raises(ParameterError, match="expected"):
            read_age(wrong)
