"""``ratchet runs`` lists and deletes runs; ``ratchet cancel`` requires a running run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli.main import app
from flows.cli.runs import print_results
from flows.process.stack_file import ProcessMark, Stack
from flows.runs.result import ExperimentResult
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking import RunFolder, RunManifest
from ratchet.tracking.run_lock import RunLock


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".ratchet" / "store").mkdir(parents=True)
    return RunFolder.create(tmp_path / "runs", RunManifest(run_id="nip-1", name="nip"))


def ratchet(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=answer)


def test_the_list_distinguishes_running_and_interrupted(run: RunFolder) -> None:
    presence = RunLock(run.path)
    assert "running" in ratchet("runs").output
    presence.release()
    assert "interrupted" in ratchet("runs").output


def test_doctor_names_interrupted_runs(run: RunFolder, tmp_path: Path) -> None:
    result = ratchet("doctor", "--home", str(tmp_path / ".ratchet"))
    assert "ratchet resume nip-1" in result.output


def test_a_run_is_deleted_after_confirmation_and_its_stages_remain(
    run: RunFolder, tmp_path: Path
) -> None:
    refused = ratchet("runs", "--delete", "nip-1", answer="n\n")
    assert refused.exit_code == 1
    assert str(run.path.relative_to(tmp_path)) in refused.output
    assert "remain in the store" in refused.output
    assert run.path.is_dir()
    assert ratchet("runs", "--delete", "nip-1", answer="y\n").exit_code == 0
    assert not run.path.exists()
    assert (tmp_path / ".ratchet" / "store").is_dir()


def test_a_run_is_deleted_without_confirmation(run: RunFolder) -> None:
    result = ratchet("runs", "--delete", "nip", "--yes")
    assert result.exit_code == 0, result.output
    assert "Deleted nip-1" in result.output
    assert not run.path.exists()


def test_a_running_run_is_not_deleted(run: RunFolder) -> None:
    presence = RunLock(run.path)
    result = ratchet("runs", "--delete", "nip-1", "--yes")
    assert result.exit_code != 0
    assert "ratchet cancel nip-1" in result.output
    run.set_status("cancelled", "told to end")
    assert ratchet("runs", "--delete", "nip-1", "--yes").exit_code != 0, "it has not ended yet"
    assert run.path.is_dir()
    presence.release()


def test_only_a_running_run_can_be_cancelled(run: RunFolder) -> None:
    result = ratchet("cancel", "nip-1")
    assert result.exit_code != 0
    assert "is not running: it is interrupted" in result.output
    assert run.manifest.status == "running", "the status is unchanged"


def test_the_final_lines_contain_the_runs_page(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "http://127.0.0.1:5000/#/experiments/1/runs/abc"
    run.update(tracking={"uri": "http://127.0.0.1:5000", "url": page})
    settings = ExperimentSettings(tracking_uri="http://127.0.0.1:5000")
    print_results(run, settings, ExperimentResult(run_id="nip-1", folder=str(run.path)))
    said = capsys.readouterr()
    assert f"MLflow   {page}" in said.out
    assert "Catch up: ratchet sync nip-1" in said.err, "it has never been mirrored"


@pytest.mark.parametrize(
    ("server", "page"),
    [("http://127.0.0.1:4200", "/runs/flow-run/f1"), ("http://127.0.0.1:8888", "")],
)
def test_the_final_lines_contain_the_flow_run_if_the_local_server_has_it(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], server: str, page: str
) -> None:
    Stack(4200, 5000, True, ProcessMark.from_pid(os.getpid())).write(tmp_path / "home")
    run.update(prefect_ui_url=server, prefect_flow_run_ids=["f0", "f1"])
    settings = ExperimentSettings(tracking=False, home=str(tmp_path / "home"))
    print_results(run, settings, ExperimentResult(run_id="nip-1", folder=str(run.path)))
    assert f"Prefect  http://127.0.0.1:4200{page}\n" in capsys.readouterr().out
