"""``ratchet`` starts fast: help imports no heavy packages."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from flows.cli.main import COMMANDS, app

HEAVY = ("torch", "prefect", "mlflow", "pydantic", "omegaconf", "numpy", "openai", "rich.progress")


def test_the_app_imports_no_heavy_packages() -> None:
    code = (
        "import sys, flows.cli.main\n"
        f"sys.stdout.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def help_text(columns: int, *command: str) -> str:
    """Return a command's help on a terminal of a certain width."""
    code = f"from flows.cli.main import app; app({[*command, '--help']!r}, prog_name='ratchet')"
    environment = {**os.environ, "COLUMNS": str(columns)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def test_help_lists_each_command_on_one_complete_line_of_80_columns() -> None:
    shown = help_text(80)
    lines = shown.partition("\nRun:\n")[2].splitlines()
    titles = [line.removesuffix(":") for line in lines if line and not line.startswith(" ")]
    entries = [line.split(maxsplit=1) for line in lines if line.startswith(" ")]
    assert ["Run", *titles] == list(COMMANDS)
    assert [name for name, _ in entries] == [*itertools.chain(*COMMANDS.values()), "llm"]
    assert all(text[0].isupper() and text.endswith(".") for _, text in entries)
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("command", [*itertools.chain(*COMMANDS.values())])
def test_the_help_of_a_command_fits_80_columns(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"]).stdout.splitlines()
    assert shown[0].startswith(f"Usage: ratchet {command} [OPTIONS]")
    assert max(map(len, shown)) <= 80


def test_help_is_as_wide_as_the_terminal() -> None:
    narrow, wide = (help_text(columns, "compare") for columns in (80, 150))
    assert max(map(len, narrow.splitlines())) <= 80
    assert max(map(len, wide.splitlines())) > 120
