"""Temporary Prefect server that the runs of a home folder share, used when no other is configured.

The first run launches it in a separate process while it imports its modules: a start takes
several CPU-seconds. Later runs use the same server. It ends when no process has used it for
:data:`IDLE_SECONDS`. Its users and the server itself hold locks on files (flock), which the kernel
releases however a process ends. It runs in a separate session, so that Ctrl-C in a terminal
does not stop it before the run has reported its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

from flows.process.prefect_server import create_database
from ratchet.errors import ParameterError, StageFailedError
from ratchet.tracking.files import locked
from ratchet.tracking.silence import Silence, file_size

SERVER_SETTINGS = {
    # one transaction per task state would keep SQLite busy for seconds after a run
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
}
"""Default settings of Prefect servers started by Ratchet: database writes in batches."""
SILENT_SECONDS = 180.0
"""How long a starting server may write nothing into its log."""
IDLE_SECONDS = 300.0
"""An unused server ends after this time, or after ``$RATCHET_SERVER_IDLE_SECONDS``."""
_POLL_SECONDS = 1.0
_LOOPBACK = "127.0.0.1"
_OF_THE_RUN = re.compile(r"PREFECT_API_URL$|(?!PREFECT_|PG).*(_KEY|_TOKEN|_SECRET|_PASSWORD)$")
"""Variables that a server which outlives the run must not inherit: an address, and secrets."""
_OF_A_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
"""Variables of cluster jobs: a server ends with the job that it was started in."""
_IDLE = "RATCHET_SERVER_IDLE_SECONDS"
_launched: TemporaryServer | None = None


@dataclass(frozen=True)
class ServerFiles:
    """The locks of one server, in ``PREFECT_HOME``; ``kind`` distinguishes servers by settings.

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
        self.log = folder / "temporary-server.log"
        self._environment = _server_environment(folder)
        self._files = ServerFiles(folder, _kind(self._environment))
        self.port = 0
        self._connect()

    @property
    def api_url(self) -> str:
        """The address of its API."""
        return f"http://{_LOOPBACK}:{self.port}/api"

    def wait(self) -> None:
        """Wait until the server responds; start it again, on its port, if it has ended."""
        self._thread.join()
        if not self._is_running():
            self._connect()
            self._thread.join()
        if self._problem is not None:
            raise StageFailedError(
                f"Prefect's temporary server {self._problem}; its log: {self.log}. Start one with"
                " `ratchet up` or set PREFECT_API_URL, and run the same command again."
            )

    def _connect(self) -> None:
        """Use the running server, or start one; then wait for it in the background."""
        self._problem: str | None = "did not start"
        self._files.folder.mkdir(parents=True, exist_ok=True)
        with locked(self._files.lock):
            self._users = self._files.users.open("a+b")  # open, and thus locked, until exit
            fcntl.flock(self._users, fcntl.LOCK_SH)
            with self._files.running.open("a+b") as running:
                if _try_lock(running):
                    self.port = self._launch(running)
                else:
                    running.seek(0)
                    port = int(running.read())
                    if self.port not in (0, port):  # Prefect has read the address
                        raise StageFailedError(
                            "Prefect's temporary server was replaced by one with a different"
                            " address, which this process cannot use. Run the same command again"
                            " in a new process."
                        )
                    self.port = port
        self._thread = threading.Thread(
            target=self._await_health, name="prefect-server", daemon=True
        )
        self._thread.start()

    def _launch(self, running: BinaryIO) -> int:
        """Start the process, which inherits the lock and a bound socket; return its port."""
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((_LOOPBACK, self.port))
            port = int(bound.getsockname()[1])
            running.truncate(0)
            running.write(str(port).encode())
            running.flush()
            inherited = [bound.fileno(), running.fileno()]
            arguments = [str(self._files.folder), self._files.kind, *map(str, inherited)]
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "flows.process.temporary_server", *arguments],
                    cwd=self._files.folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=inherited,
                    start_new_session=True,
                )
        return port

    def _await_health(self) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        silence = Silence()
        while silence.seconds(file_size(self.log)) < SILENT_SECONDS:
            with (
                contextlib.suppress(OSError, http.client.HTTPException),
                opener.open(f"{self.api_url}/health", timeout=5) as response,
            ):
                if response.status == http.client.OK:
                    self._problem = None
                    return
            if not self._is_running():
                self._problem = "ended"
                return
            time.sleep(0.05)
        self._problem = f"did not respond, and wrote nothing for {SILENT_SECONDS:.0f} s"

    def _is_running(self) -> bool:
        try:
            with locked(self._files.lock), self._files.running.open("r+b") as running:
                return not _try_lock(running)
        except FileNotFoundError:  # its folder was removed
            return False


def launch(home: str | Path) -> None:
    """Use or start a server in the background unless one is configured; return immediately.

    Call it before Prefect is imported, since Prefect reads the server's address at import.
    ``home`` is ``ExperimentSettings.home``, whose folder for Prefect exists.
    """
    global _launched  # one server per process, like the environment variable with its address
    if _launched is not None or "prefect" in sys.modules or _is_configured():
        return
    chosen = os.path.expanduser(os.environ.get("PREFECT_HOME") or Path(home) / "prefect")
    folder = Path(chosen).resolve()
    try:
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

    with locked(Path(home) / "prefect" / ".server.lock"):
        SubprocessASGIServer().start()


def _is_configured() -> bool:
    """Return whether the user has, or may have, configured a server."""
    if os.environ.get("PREFECT_API_URL") or os.environ.get("PREFECT_PROFILE"):
        return True
    profiles = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser() / "profiles.toml"
    return profiles.exists()


def _server_environment(folder: Path) -> dict[str, str]:
    idle = os.environ.get(_IDLE, str(IDLE_SECONDS))
    try:
        float(idle)
    except ValueError as error:
        raise ParameterError(f"{_IDLE}: got {idle!r}, expected a number of seconds.") from error
    fixed = {
        _IDLE: idle,
        "PREFECT_HOME": str(folder),
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
    }
    inherited = {name: value for name, value in os.environ.items() if not _OF_THE_RUN.match(name)}
    return {**SERVER_SETTINGS, **inherited, **fixed}


def _kind(environment: dict[str, str]) -> str:
    """Return a digest of a server's dependencies: machine, job, installation and settings."""
    chosen = sorted(
        item
        for item in environment.items()
        if item[0].startswith("PREFECT") or item[0] in _OF_A_JOB
    )
    network = Path("/proc/self/ns/net")  # containers that share a folder share no loopback
    where = (socket.gethostname(), network.stat().st_ino if network.exists() else 0)
    text = repr((where, sys.prefix, version("prefect"), chosen))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _serve(files: ServerFiles, address: int, running: int) -> None:
    """Serve at a bound socket until a signal arrives or no process uses the server."""
    gc.disable()  # until the server is imported
    threading.Thread(target=_end_when_unused, args=(files, running), daemon=True).start()
    import uvicorn

    create_database()
    config = uvicorn.Config(
        "flows.process.prefect_server:create_app", factory=True, log_level="error", lifespan="on"
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=address)])


def _end_when_unused(files: ServerFiles, running: int) -> None:
    """Exit when no process has used the server for a while, or when its folder was removed."""
    idle_seconds = float(os.environ[_IDLE])
    used_at = time.monotonic()
    while True:
        time.sleep(_POLL_SECONDS)
        try:
            if os.stat(files.running).st_ino != os.fstat(running).st_ino:
                os._exit(0)
            with files.lock.open("r+b") as lock, files.users.open("r+b") as users:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _try_lock(users):
                    used_at = time.monotonic()
                elif time.monotonic() - used_at >= idle_seconds:
                    os.close(running)  # first: the next process that launches gets the lock
                    os._exit(0)
        except FileNotFoundError:
            os._exit(0)
        except OSError:  # too many open files, a full disk: it may pass
            continue


if __name__ == "__main__":
    _serve(ServerFiles(Path(sys.argv[1]), sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
