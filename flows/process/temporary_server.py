"""Temporary Prefect server for one process, used when no other server is available.

It takes seconds to start, so it is launched in a separate process while the parent imports what a
run needs. It watches its standard input and ends with its parent, even after SIGKILL. It runs in a
separate session, so that Ctrl-C in a terminal does not stop it before the run has reported its end.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from flows.process.prefect_server import create_database
from ratchet.errors import RatchetError, StageFailedError

SERVER_SETTINGS = {
    # one transaction per task state would keep SQLite busy for seconds after a run
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
}
"""Default settings of Prefect servers started by Ratchet: database writes in batches."""
START_SECONDS = 180.0  # a start takes at least five CPU-seconds, and the machine may be busy
STOP_SECONDS = 5.0
_POLL_SECONDS = 1.0
_LOOPBACK = "127.0.0.1"
_launched: TemporaryServer | None = None


class TemporaryServer:
    """A starting or running server with its database and log in ``PREFECT_HOME``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "temporary-server.log"
        self.port = _free_port()
        self.api_url = f"http://{_LOOPBACK}:{self.port}/api"
        self._process: subprocess.Popen[bytes] | None = None
        self._error: RatchetError | None = None
        self._thread = threading.Thread(target=self._start, name="prefect-server", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the server responds; StageFailedError with its log's path if it fails."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop the server."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        """Start the server under a lock: two servers that create one new database both fail."""
        from ratchet.tracking.files import locked

        try:
            with locked(self.folder / ".server.lock"), self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "flows.process.temporary_server", str(self.port)],
                    env=_server_environment(),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._await_health(self._process)
        except OSError as error:
            self._error = StageFailedError(f"Prefect's temporary server did not start: {error}")
        except RatchetError as error:
            self._error = error

    def _await_health(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.api_url}/health", timeout=5) as response:
                    if response.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        code = process.poll()
        problem = f"did not respond in {START_SECONDS:.0f} s" if code is None else f"ended ({code})"
        raise StageFailedError(
            f"Prefect's temporary server {problem}; its log: {self.log}. Start one with"
            " `ratchet up` or set PREFECT_API_URL, and run the same command again."
        )


def launch(home: str | Path) -> None:
    """Start a server in the background unless one is configured; return immediately.

    Call it before Prefect is imported, since Prefect reads the server's address at import.
    ``home`` is ``ExperimentSettings.home``, whose folder for Prefect exists.
    """
    global _launched  # one server per process, like the environment variable with its address
    if _launched is not None or "prefect" in sys.modules or _is_configured():
        return
    folder = Path(os.environ.get("PREFECT_HOME", Path(home).resolve() / "prefect"))
    folder.mkdir(parents=True, exist_ok=True)
    _launched = TemporaryServer(folder)
    atexit.register(_launched.stop)
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


def _server_environment() -> dict[str, str]:
    fixed = {
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
    }
    inherited = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    return {**SERVER_SETTINGS, **inherited, **fixed}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _serve(port: int) -> None:
    """Serve until a signal arrives or the parent process is gone."""
    gc.disable()  # until the server is imported
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
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


def _end_with(parent: int) -> None:
    """Exit when the pipe's other end is closed, or when only a fork of the parent holds it."""
    while os.getppid() == parent and not select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
        pass
    os._exit(0)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
