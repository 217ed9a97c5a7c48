"""Processes of the stack: started, supervised, restarted after a crash, and terminated."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from deployments.stack_services import StackService
from flows.process.messages import print_warning
from flows.process.stack_file import ProcessMark

STEADY_SECONDS = 60.0
"""Minimum run time of a successful start; a process that ends earlier is in a crash loop."""
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
_LOOP = 4  # consecutive early exits that are reported as a crash loop


class SupervisedProcess:
    """The process of a service, and its number of consecutive early exits."""

    def __init__(self, service: StackService) -> None:
        self.service = service
        self.restart_at: float | None = None
        self._exits = 0
        self._launch("wb")

    def exit_code(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self.process.poll()

    def schedule_restart(self) -> None:
        """Schedule the next start with an increasing delay, and log a warning."""
        steady = time.monotonic() - self._started >= STEADY_SECONDS
        self._exits = 1 if steady else self._exits + 1
        delay = min(FIRST_DELAY * 2.0 ** min(self._exits - 1, 60), LONGEST_DELAY)
        self.restart_at = time.monotonic() + delay
        if not self.service.children_survive:
            with contextlib.suppress(ProcessLookupError):  # it leads its own process group
                os.killpg(self.process.pid, signal.SIGKILL)
        loop = ""
        if self._exits >= _LOOP:
            loop = f" This is a crash loop: {self._exits} early exits in a row."
        print_warning(
            f"the {self.service.name} exited with exit code {self.process.returncode}; restarting"
            f" it in {delay:.0f} s.{loop} Last lines of {self.service.log}:\n"
            f"{tail(self.service.log)}"
        )

    def restart(self) -> None:
        """Start the process again and append to its log."""
        self.restart_at = None
        self._launch("ab")

    def _launch(self, mode: str) -> None:
        self.service.log.parent.mkdir(parents=True, exist_ok=True)
        with self.service.log.open(mode) as log:
            self.process = subprocess.Popen(
                self.service.command,
                env=self.service.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started = time.monotonic()
        self.mark = ProcessMark.from_pid(self.process.pid)


def tail(log: Path) -> str:
    """Return the last 15 lines of a log."""
    if not log.exists():
        return "(empty)"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


def terminate_processes(marks: Sequence[ProcessMark], seconds: float = 10.0) -> None:
    """Send SIGTERM, wait, then send SIGKILL to the remaining processes and all descendants.

    Skips processes that have exited and process ids that the system has reused.
    """
    parents = [psutil.Process(mark.pid) for mark in marks if mark.is_alive()]
    family = list(parents)
    for parent in parents:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += parent.children(recursive=True)
    for parent in parents:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent.terminate()
    psutil.wait_procs(parents, timeout=seconds)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=5.0)
