"""Runs share a temporary Prefect server, which ends when no run has used it for a while."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from flows.process import temporary_server
from ratchet.errors import ParameterError, StageFailedError

SCRIPT = """
import sys
from flows.process import temporary_server
temporary_server.launch(sys.argv[1])
temporary_server.ensure(sys.argv[1])
import os
from prefect.settings import PREFECT_UI_URL
print(os.environ["PREFECT_API_URL"])
print(PREFECT_UI_URL.value() or "no pages", flush=True)
for _ in sys.stdin:
    temporary_server.ensure(sys.argv[1])
    print("ready", flush=True)
"""


class Home:
    """Processes that use the server of one folder."""

    def __init__(self, folder: Path, **changes: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if "PREFECT" not in name}
        self.environment = {**kept, "PREFECT_HOME": str(folder / "prefect"), **changes}

    def start(self) -> subprocess.Popen[str]:
        """Start a process that uses the server until its standard input is closed."""
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(self.folder)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def server(self) -> psutil.Process:
        """Return the process of the server."""
        (found,) = [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(self.folder / "prefect") in (process.info["cmdline"] or ())
        ]
        return found


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    url, pages = (process.stdout.readline().strip() for _ in range(2))
    assert url.startswith("http://127.0.0.1:")
    assert pages == "no pages", "links would be dead after the server has ended"
    return url


def leave(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=300)


def responds(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.slow
def test_a_server_serves_all_processes_and_ends_after_the_last(tmp_path: Path) -> None:
    home = Home(tmp_path, RATCHET_SERVER_IDLE_SECONDS="3", OPENAI_API_KEY="a-secret")
    first, second = home.start(), home.start()
    url = url_of(first)
    assert url_of(second) == url, "both were started at the same time"
    server = home.server()
    assert "a-secret" not in server.environ().values()
    first.kill()
    first.wait()
    leave(second)
    third = home.start()
    assert url_of(third) == url, "the server has outlived the processes that started with it"
    time.sleep(4)  # longer than it may be idle: a process that makes no requests uses it too
    assert responds(url)

    server.kill()
    server.wait(240)
    third.stdin.write("\n")
    third.stdin.flush()
    assert third.stdout.readline() == "ready\n"
    assert responds(url), "a process that has read the address starts a server at the same"
    fourth = home.start()
    assert url_of(fourth) == url
    server = home.server()
    third.kill()
    third.wait()
    fourth.kill()
    fourth.wait()
    server.wait(240)
    assert not responds(url)


@pytest.mark.slow
def test_a_server_ends_when_its_folder_is_removed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"  # the first server of a machine
    home = Home(tmp_path / "home", RATCHET_SERVER_IDLE_SECONDS="600", XDG_CACHE_HOME=str(cache))
    process = home.start()
    url = url_of(process)
    server = home.server()
    leave(process)
    assert responds(url)
    assert list(cache.rglob("prefect-*.db"))
    shutil.rmtree(home.folder)
    server.wait(240)
    assert not responds(url)


def test_a_program_that_is_no_server_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        threading.Thread(target=answer_nonsense, args=(other,), daemon=True).start()
        monkeypatch.setattr(temporary_server.TemporaryServer, "_launch", lambda *_: port)
        monkeypatch.setattr(temporary_server, "SILENT_SECONDS", 0.3)
        server = temporary_server.TemporaryServer(tmp_path)
        with pytest.raises(StageFailedError, match=r"did not start|ended|did not respond"):
            server.wait()


def answer_nonsense(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"nonsense\r\n\r\n")


def test_a_server_keeps_its_credentials_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"PREFECT_API_DATABASE_PASSWORD": "1", "PGPASSWORD": "2"}
    dropped = {"OPENAI_API_KEY": "3", "AWS_SECRET": "4", "PREFECT_API_URL": "http://5"}
    for name, value in {**kept, **dropped}.items():
        monkeypatch.setenv(name, value)
    environment = temporary_server._server_environment(tmp_path)
    assert kept.items() <= environment.items()
    assert not dropped.keys() & environment.keys()
    monkeypatch.setenv("RATCHET_SERVER_IDLE_SECONDS", "soon")
    with pytest.raises(ParameterError, match="got 'soon', expected a number of seconds"):
        temporary_server._server_environment(tmp_path)


def test_servers_of_different_settings_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = set()
    for database in ("one.db", "two.db", "two.db"):
        monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{database}")
        kinds.add(temporary_server._kind(temporary_server._server_environment(tmp_path)))
    assert len(kinds) == 2
