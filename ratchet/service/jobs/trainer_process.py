"""A process that trains one job and ends with the service.

``python -m ratchet.service.jobs.trainer_process MODULE`` imports the module, which
takes seconds, then reads a job's folder as a line of its standard input, and runs
``MODULE.train(folder)``. A trainer can thus start before a job exists.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import IO

from ratchet.service.parent_watchdog import exit_with_parent

_SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_TAIL_BYTES = 4000
_TAIL_LINES = 20
NO_ROOM = os.EX_IOERR
"""Exit code of a trainer that ran out of disk space."""
NO_ROOM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_ROOM_REASONS = tuple(map(os.strerror, NO_ROOM_ERRORS))


class TrainerProcess:
    """A trainer process, ``module.train(folder: Path)``, that is starting, waiting, or training."""

    def __init__(self, module: str) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by close()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "ratchet.service.jobs.trainer_process",
                module,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env=_environment(),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None

    def start_job(self, folder: Path) -> None:
        """Send it the job's folder."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, as ``wait`` will report
            self._process.stdin.write(os.fsencode(folder) + b"\n")
            self._process.stdin.flush()

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; return its exit code, or None if it is still running."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill it if it is running, and close its pipes."""
        self.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._stderr.close()

    def last_lines(self) -> str:
        """Return the end of its standard error."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _TAIL_BYTES))
        text = self._stderr.read().decode("utf-8", "replace")
        return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])


def _environment() -> dict[str, str]:
    """Remove keys from the environment: the trainer's last lines are shown to clients."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.upper().endswith(_SECRET_ENDINGS)
    }


def _main() -> None:
    module = importlib.import_module(sys.argv[1])
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return  # the service has ended
    exit_with_parent()
    try:
        module.train(Path(os.fsdecode(line.rstrip(b"\n"))))
    except Exception as error:
        # by its text: libraries that write files have custom error classes
        if not any(reason in str(error) for reason in _NO_ROOM_REASONS):
            raise
        with contextlib.suppress(OSError):
            traceback.print_exc()
        sys.exit(NO_ROOM)


if __name__ == "__main__":
    _main()
