"""A new MLflow database is complete or absent, also if processes start concurrently."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.stack_services import stack_services
from flows.process.checks.base import CheckResult, Installation
from flows.process.checks.servers import mlflow_database
from flows.process.stack_file import ProcessMark, Stack
from ratchet.errors import TrackingError
from ratchet.tracking.mirrors.mlflow.client import connect, default_tracking_uri

CODE = """
import sys
from ratchet.tracking.mirrors.mlflow.client import connect
print(len(connect(sys.argv[1]).search_experiments()))
"""

# sitecustomize that kills the process during MLflow's migrations
KILL = """
import os, signal
try:
    from sqlalchemy import event
    from sqlalchemy.engine import Engine
except ImportError:
    pass
else:
    @event.listens_for(Engine, "before_cursor_execute")
    def kill(connection, cursor, statement, *_):
        if "INSERT INTO _alembic_tmp_latest_metrics" in statement:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_two_processes_can_open_a_new_database_concurrently(tmp_path):
    uri = f"sqlite:///{tmp_path / 'home' / 'mlflow.db'}"
    command = [sys.executable, "-c", CODE, uri]
    pipe = subprocess.PIPE
    both = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert [output.strip() for output, _ in outputs] == ["1", "1"]
    assert not list((tmp_path / "home").glob("*.new*"))


def killed_while_creating(command: list[str], folder: Path, **environment: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(KILL)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command,
        env={**os.environ, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Error" not in done.stderr, done.stderr
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


@pytest.mark.slow
def test_a_process_killed_while_it_creates_the_database_leaves_none(tmp_path, monkeypatch):
    home = tmp_path / "home"
    uri = default_tracking_uri(home)
    cache = tmp_path / "cache"
    killed_while_creating(
        [sys.executable, "-c", CODE, uri], tmp_path / "site", XDG_CACHE_HOME=str(cache)
    )
    assert not list(cache.rglob("mlflow-*.db"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert not (home / "mlflow.db").exists()
    assert len(connect(uri).search_experiments()) == 1
    names = {path.name for path in home.iterdir()}
    assert names == {"mlflow.db", ".mlflow.db.lock"}


@pytest.mark.slow
def test_a_stack_killed_while_it_creates_the_database_leaves_none(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    stack = Stack(1, 1, ready=False, supervisor=ProcessMark.from_pid(os.getpid()))
    (server,) = (
        part for part in stack_services(home, stack, worker=False)[0] if part.name == "mlflow"
    )
    environment = {**server.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    killed_while_creating(server.command, tmp_path / "site", **environment)
    assert not (home / "mlflow.db").exists()


@pytest.mark.slow
def test_an_incomplete_database_of_an_earlier_version_is_reported(tmp_path, monkeypatch):
    database = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(database)) as half:
        half.executescript(
            "create table experiments (experiment_id integer);"
            "create table alembic_version (version_num text);"
            "insert into alembic_version values ('451aebb31d03');"
            "create table _alembic_tmp_latest_metrics (key text);"
        )
    advice = f"mv {database} {database}.damaged"
    with pytest.raises(TrackingError, match="creation was interrupted") as error:
        connect(f"sqlite:///{database}")
    assert advice in str(error.value)
    assert "ratchet sync RUN" in str(error.value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (check,) = mlflow_database(Installation(tmp_path, tmp_path / "runs"))
    assert check.verdict is CheckResult.BAD
    assert advice in check.details


def test_intact_and_missing_databases_are_not_reported(empty_database, tmp_path):
    assert list(mlflow_database(Installation(empty_database.parent, tmp_path))) == []
    assert list(mlflow_database(Installation(tmp_path, tmp_path))) == []
