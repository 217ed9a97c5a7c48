"""Prefect's files are in Ratchet's home unless the user has configured a Prefect server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.process.environment import prepare_environment
from flows.process.stack_file import ProcessMark, Stack, read_stack
from ratchet.errors import ParameterError

PREFECT = ("PREFECT_API_URL", "PREFECT_HOME", "PREFECT_PROFILE")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PREFECT:
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)


def stack(mark: ProcessMark) -> Stack:
    return Stack(prefect_port=1234, mlflow_port=1235, ready=True, supervisor=mark)


def test_prefects_files_are_in_home(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    prepare_environment(home)
    assert os.environ["PREFECT_HOME"] == str(home / "prefect")
    assert (home / "prefect").is_dir(), "Prefect creates its folder, but no parents"
    assert "PREFECT_API_URL" not in os.environ


def test_a_configured_prefect_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://elsewhere/api")
    prepare_environment(tmp_path)
    assert "PREFECT_HOME" not in os.environ
    assert os.environ["PREFECT_API_URL"] == "http://elsewhere/api"


def test_the_end_of_a_stage_is_logged_once_in_prefect() -> None:
    code = """
import logging
from prefect.settings import PREFECT_UI_URL, temporary_settings
from flows.process.environment import log_to_prefect
with temporary_settings({PREFECT_UI_URL: "http://127.0.0.1:9"}):
    log_to_prefect()
logger = logging.getLogger("prefect.task_runs")
logger.setLevel(logging.INFO)
seen = []
logger.handlers = [logging.NullHandler()]
logger.handlers[0].handle = lambda record: seen.append(record.getMessage())
logger.propagate = False
logger.info("Finished in state %s", "Cached('Found in the store')")
logger.error("Finished in state Failed()")
logger.info("a line of a user's task")
assert seen == ["Finished in state Failed()", "a line of a user's task"], seen
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_running_stack_is_used(tmp_path: Path) -> None:
    stack(ProcessMark.from_pid(os.getpid())).write(tmp_path)
    prepare_environment(tmp_path)
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:1234/api"


def test_a_stack_with_a_reused_pid_is_not_used(tmp_path: Path) -> None:
    mine = ProcessMark.from_pid(os.getpid())
    stack(ProcessMark(mine.pid, mine.started - 100)).write(tmp_path)
    prepare_environment(tmp_path)
    assert "PREFECT_API_URL" not in os.environ


def test_a_stack_file_round_trips(tmp_path: Path) -> None:
    written = stack(ProcessMark.from_pid(os.getpid()))
    written.write(tmp_path)
    assert read_stack(tmp_path) == written
    (tmp_path / "stack.json").write_text("{")
    assert read_stack(tmp_path) is None


def test_a_home_whose_path_ends_a_databases_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"what\?/home', expected a path without '\?'"):
        prepare_environment(tmp_path / "what?" / "home")
    assert list(tmp_path.iterdir()) == []
