"""Errors at the command line are messages; tracebacks are for ``--debug``."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from ratchet.errors import ParameterError
from ratchet.parameters.sweeps import grid_points

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


LONG = "x" * 300


@pytest.mark.parametrize(
    "command",
    [
        *(f"{command} {LONG}" for command in ("import", "exploit", "sweep-page", "compare")),
        *(f"{command} {LONG}" for command in ("export", "report", "watch", "verify", "new")),
        f"gc --runs-dir {LONG}",
        f"runs --runs-dir {LONG}",
        f"gc --store {LONG} --runs-dir .",
        f"verify x --published {LONG}",
    ],
)
def test_a_path_that_is_too_long_is_named_without_a_traceback(command: str) -> None:
    result = RUNNER.invoke(app, command.split())
    assert result.exit_code == 2, result.output
    assert "x" * 100 in result.stderr.replace("\n", "") or "no run 'x'" in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_files_and_urls_that_cannot_be_read_are_named() -> None:
    for command, text in (
        ("import /proc/self/mem", "/proc/self/mem: it cannot be read: Invalid argument"),
        ("gc --store ftp://user:secret@nowhere.invalid/x", "to ftp://nowhere.invalid: "),
    ):
        result = RUNNER.invoke(app, command.split())
        assert result.exit_code == 2, result.output
        assert text in result.stderr
        assert "secret" not in result.output
        assert isinstance(result.exception, SystemExit)


def test_members_of_a_sweep_are_counted_before_they_are_built(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("scenario: graph_isomorphism\ndataset: generated\n")
    result = RUNNER.invoke(app, ["sweep", "sweep.yaml", "seed=0..10000000000"])
    assert result.exit_code == 2, result.output
    assert "has 10,000,000,001 values, expected at most 100,000" in result.stderr
    many = {"seed": range(100_000), "rl.num_iterations": range(100_000)}
    with pytest.raises(ParameterError, match=r"got 10,000,000,000 combinations .*100,000 of seed"):
        grid_points(many)
