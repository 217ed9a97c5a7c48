"""``--json``: stdout contains exactly one JSON document; numbers are JSON numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder

ROOT = Path(__file__).parents[3]
SMALL = str(ROOT / "experiments" / "binary_erasure_channel.yaml")
RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ask(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    result = RUNNER.invoke(app, list(arguments))
    assert result.exit_code == exit_code, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture
def run() -> RunFolder:
    folder = RunFolder.create("runs", RunManifest(run_id="demo-12345678", name="demo"))
    columns = {"datapoint_id": [0, 1, 2, 3], "y": [0, 1, 0, 1], "decision": [0, 1, 0, 0]}
    folder.write_table(ResultTable("test", {**columns, "correct": [1, 1, 1, 0]}))
    return folder


def test_runs(run: RunFolder) -> None:
    (row,) = ask("runs", "--json")["tables"][0]["rows"]
    assert row["run"] == "demo-12345678"
    (result,) = row["results"]
    assert (result["arm"], result["test"], result["value"], result["n"]) == (
        "main",
        "test",
        0.75,
        4,
    )


def test_json_is_accepted_anywhere_and_empty_results_are_documents() -> None:
    assert ask("--json", "runs") == ask("runs", "--json")
    assert ask("runs", "--json")["tables"] == []
    assert "Start one" in ask("runs", "--json")["notes"][0]


def test_usage_errors_are_in_the_document() -> None:
    assert "Missing argument 'KIND'" in ask("list", "--json", exit_code=2)["errors"][0]
    (said,) = ask("deploy", "--json", exit_code=2)["errors"]
    assert "Start the stack in a second terminal: `ratchet up`." in said
    (said,) = ask("deploy", "--slots", "3", "--json", exit_code=2)["errors"]
    assert said == "deploy: got --slots=3, expected an experiment file too."


def test_plan() -> None:
    document = ask("plan", SMALL, "--json")
    rows = document["tables"][0]["rows"]
    assert {row["arm"] for row in rows} == {"main", "verifier_alone", "together"}
    assert all(row["hit"] is False and len(row["key"]) >= 32 for row in rows)
    assert "to do" in document["notes"][0]


def test_sweep() -> None:
    document = ask("sweep", SMALL, "seed=0..1", "--dry-run", "--json")
    assert [row["changes"] for row in document["tables"][0]["rows"]] == [{"seed": 0}, {"seed": 1}]


@pytest.mark.parametrize("kind", ["trainers", "environments", "experiments", "parameters"])
def test_list(kind: str, tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "demo.yaml").write_text("# ratchet run it\nscenario: a\n")
    assert ask("list", kind, "--json")["tables"][0]["rows"]


def test_doctor() -> None:
    rows = ask("doctor", "--json")["tables"][0]["rows"]
    assert {"checked", "result", "details"} == set(rows[0])


def test_an_error_is_in_the_document_and_on_stderr() -> None:
    result = RUNNER.invoke(app, ["report", "nothing", "--json"])
    assert result.exit_code == 2
    assert "no run 'nothing'" in result.stderr
    assert "no run 'nothing'" in json.loads(result.stdout)["errors"][0]
