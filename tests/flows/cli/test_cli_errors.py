"""Errors at the command line are messages; tracebacks are for ``--debug``."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from ratchet.errors import ParameterError

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATCHET_DEBUG", raising=False)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "demo.yaml").write_text("# ratchet run\nscenario: a\n")


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_missing_file_is_reported_with_the_nearest_name(command: str) -> None:
    result = RUNNER.invoke(app, [command, "experiments/dmo.yaml"])
    assert result.exit_code == 2
    assert (
        "experiments/dmo.yaml: no such file. Did you mean experiments/demo.yaml?" in result.stderr
    )
    assert "Traceback" not in result.output


def test_a_missing_run_is_reported() -> None:
    result = RUNNER.invoke(app, ["report", "nothing"])
    assert result.exit_code == 2
    assert "no run 'nothing'" in result.stderr


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_is_accepted_anywhere_and_raises_the_error(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["run", "nothing.yaml"]
    arguments.insert(place, "--debug")
    monkeypatch.setenv("RATCHET_DEBUG", "")
    result = RUNNER.invoke(app, arguments)
    assert isinstance(result.exception, ParameterError)
