"""A part of the stack as a process: started, watched, and started again when it has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from deployments.parts import Part
from flows.process.messages import print_warning
from flows.process.stack_file import ProcessMark

STEADY_SECONDS = 60.0
"""A part that has run so long was started well; one that ends sooner is in a crash loop."""
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
_LOOP = 4  # ends in a row from which on it is called a crash loop


class Child:
    """The process of a part, and how often it has ended by itself."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.due: float | None = None
        self._ends = 0
        self._launch("wb")

    def ended(self) -> int | None:
        """Return the exit code of a process that has ended; None while it runs."""
        return self.process.poll()

    def note_end(self) -> None:
        """Plan the next start, later each time, and say so."""
        steady = time.monotonic() - self._started >= STEADY_SECONDS
        self._ends = 1 if steady else self._ends + 1
        delay = min(FIRST_DELAY * 2.0 ** min(self._ends - 1, 60), LONGEST_DELAY)
        self.due = time.monotonic() + delay
        if not self.part.children_go_on:
            with contextlib.suppress(ProcessLookupError):  # it leads a group of its own
                os.killpg(self.process.pid, signal.SIGKILL)
        loop = ""
        if self._ends >= _LOOP:
            loop = f" This is a crash loop: {self._ends} times in a row, each soon after its start."
        print_warning(
            f"the {self.part.name} ended by itself with exit code {self.process.returncode}; it is"
            f" started again in {delay:.0f} s.{loop} The end of {self.part.log}:\n"
            f"{tail(self.part.log)}"
        )

    def start_again(self) -> None:
        """Start it again; its log goes on."""
        self.due = None
        self._launch("ab")

    def _launch(self, mode: str) -> None:
        self.part.log.parent.mkdir(parents=True, exist_ok=True)
        with self.part.log.open(mode) as log:
            self.process = subprocess.Popen(
                self.part.command,
                env=self.part.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started = time.monotonic()
        self.mark = ProcessMark.of(self.process.pid)


def tail(log: Path, lines: int = 15) -> str:
    """Return the end of a log."""
    if not log.exists():
        return "(empty)"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
