"""Temporary Prefect server that the runs of a home folder share, used when no other is configured.

The first run launches it in a separate process while it imports what it needs: a start takes
several CPU-seconds. Later runs use the same server. It ends when no process has used it for
:data:`IDLE_SECONDS`. Locks on files (flock) tell who uses it and whether it runs: the kernel
releases them however a process ends. It runs in a separate session, so that Ctrl-C in a terminal
does not stop it before the run has reported its end.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

from flows.process.prefect_server import create_database
from ratchet.errors import StageFailedError
from ratchet.tracking.files import locked

SERVER_SETTINGS = {
    # one transaction per task state would keep SQLite busy for seconds after a run
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
}
"""Default settings of Prefect servers started by Ratchet: database writes in batches."""
START_SECONDS = 180.0  # a start takes at least five CPU-seconds, and the machine may be busy
IDLE_SECONDS = 300.0
"""An unused server ends after this time, or after ``$RATCHET_SERVER_IDLE_SECONDS``."""
_POLL_SECONDS = 1.0
_LOOPBACK = "127.0.0.1"
_OF_THE_RUN = re.compile(r"PREFECT_API_URL$|(_KEY|_TOKEN|_SECRET|_PASSWORD)$")
"""Variables that a server which outlives the run must not inherit: its address, and secrets."""
_launched: TemporaryServer | None = None


@dataclass(frozen=True)
class ServerFiles:
    """The locks of one server, in ``PREFECT_HOME``; ``kind`` tells servers of other settings apart.

    Users hold a shared lock on ``users``. The server holds an exclusive one on ``running``, which
    contains its port. ``lock`` is held to launch or end a server.
    """

    folder: Path
    kind: str

    @property
    def lock(self) -> Path:
        """Held by a process that launches the server, or by the server that ends."""
        return self.folder / ".server.lock"

    @property
    def users(self) -> Path:
        """Locked by each process that uses the server."""
        return self.folder / f".server-{self.kind}.users"

    @property
    def running(self) -> Path:
        """Locked by the server; contains its port."""
        return self.folder / f".server-{self.kind}.running"


class TemporaryServer:
    """A starting or running server, its database and log in ``PREFECT_HOME``, used until exit."""

    def __init__(self, folder: Path) -> None:
        environment = _server_environment(folder)
        self.files = ServerFiles(folder, _kind(environment))
        self.log = folder / "temporary-server.log"
        with locked(self.files.lock):
            self._users = self.files.users.open("ab")  # open, and thus locked, until exit
            fcntl.flock(self._users, fcntl.LOCK_SH)
            with self.files.running.open("a+b") as running:
                if _try_lock(running):
                    self.port = self._launch(running, environment)
                else:
                    running.seek(0)
                    self.port = int(running.read())
        self.api_url = f"http://{_LOOPBACK}:{self.port}/api"
        self._error: StageFailedError | None = None
        self._thread = threading.Thread(
            target=self._await_health, name="prefect-server", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the server responds; StageFailedError with its log's path if it fails."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _launch(self, running: BinaryIO, environment: dict[str, str]) -> int:
        """Start the process, which inherits the lock, and return its port."""
        port = _free_port()
        running.truncate(0)
        running.write(str(port).encode())
        running.flush()
        arguments = [str(port), str(self.files.folder), self.files.kind, str(running.fileno())]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "flows.process.temporary_server", *arguments],
                cwd=self.files.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[running.fileno()],
                start_new_session=True,
            )
        return port

    def _await_health(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        problem = f"did not respond in {START_SECONDS:.0f} s"
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.api_url}/health", timeout=5) as response:
                    if response.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                if not self._is_running():
                    problem = "ended"
                    break
                time.sleep(0.05)
        self._error = StageFailedError(
            f"Prefect's temporary server {problem}; its log: {self.log}. Start one with"
            " `ratchet up` or set PREFECT_API_URL, and run the same command again."
        )

    def _is_running(self) -> bool:
        with locked(self.files.lock), self.files.running.open("ab") as running:
            return not _try_lock(running)


def launch(home: str | Path) -> None:
    """Use or start a server in the background unless one is configured; return immediately.

    Call it before Prefect is imported, since Prefect reads the server's address at import.
    ``home`` is ``ExperimentSettings.home``, whose folder for Prefect exists.

    Raises
    ------
    StageFailedError
        If no process can be started or the folder cannot be written.
    """
    global _launched  # one server per process, like the environment variable with its address
    if _launched is not None or "prefect" in sys.modules or _is_configured():
        return
    folder = Path(os.environ.get("PREFECT_HOME", Path(home) / "prefect")).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _launched = TemporaryServer(folder)
    except OSError as error:
        raise StageFailedError(f"Prefect's temporary server did not start: {error}") from error
    os.environ["PREFECT_API_URL"] = _launched.api_url
    os.environ["PREFECT_UI_URL"] = ""  # no UI: the server would be gone when links are opened


def ensure(home: str | Path) -> None:
    """Wait for a server: the launched one, a configured one, or one that Prefect starts.

    Raises StageFailedError if the launched one does not start.
    """
    launch(home)
    if _launched is not None:
        _launched.wait()
        return
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value():
        return
    from prefect.server.api.server import SubprocessASGIServer

    from ratchet.tracking.files import locked

    with locked(Path(home) / "prefect" / ".server.lock"):
        SubprocessASGIServer().start()


def _is_configured() -> bool:
    """Return whether the user has, or may have, configured a server."""
    if os.environ.get("PREFECT_API_URL") or os.environ.get("PREFECT_PROFILE"):
        return True
    profiles = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser() / "profiles.toml"
    return profiles.exists()


def _server_environment(folder: Path) -> dict[str, str]:
    fixed = {
        "PREFECT_HOME": str(folder),
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
    }
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PREFECT_SERVER_") or not _OF_THE_RUN.search(name)
    }
    return {**SERVER_SETTINGS, **inherited, **fixed}


def _kind(environment: dict[str, str]) -> str:
    """Return a digest of what decides how a server behaves: installation and settings."""
    chosen = sorted(item for item in environment.items() if item[0].startswith("PREFECT"))
    text = repr((sys.prefix, version("prefect"), chosen))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _serve(port: int, files: ServerFiles, running: int) -> None:
    """Serve until a signal arrives or nobody uses the server any more."""
    gc.disable()  # until the server is imported
    threading.Thread(target=_end_when_unused, args=(files, running), daemon=True).start()
    import uvicorn

    create_database()
    uvicorn.run(
        "flows.process.prefect_server:create_app",
        factory=True,
        host=_LOOPBACK,
        port=port,
        log_level="error",
        lifespan="on",
    )


def _end_when_unused(files: ServerFiles, running: int) -> None:
    """Exit when nobody has used the server for a while, or when its folder has been removed."""
    idle_seconds = float(os.environ.get("RATCHET_SERVER_IDLE_SECONDS", IDLE_SECONDS))
    used_at = time.monotonic()
    while True:
        time.sleep(_POLL_SECONDS)
        try:
            if os.stat(files.running).st_ino != os.fstat(running).st_ino:
                os._exit(0)
            with locked(files.lock), files.users.open("r+b") as users:
                if not _try_lock(users):
                    used_at = time.monotonic()
                elif time.monotonic() - used_at >= idle_seconds:
                    os.close(running)  # first: whoever gets the lock starts another server
                    os._exit(0)
        except FileNotFoundError:
            os._exit(0)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), ServerFiles(Path(sys.argv[2]), sys.argv[3]), int(sys.argv[4]))
