"""Processes forked from one that has imported Ratchet and Prefect, which takes most of a short run.

Each is a complete process with its own environment: it can be killed, and its parent is not the
test's process.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PRELOADED = [
    "flows.experiment_flow",
    "flows.runs.run",
    "flows.runs.fork",
    "ratchet.scenarios.graph_isomorphism",
    "trainers.tensordict.vanilla_ppo",
    *("prefect.flow_engine", "prefect.task_engine", "fastapi.encoders"),
]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_PRELOADED)


def start_script(
    command: Sequence[str], environment: Mapping[str, str], output: Path
) -> ForkedScript | subprocess.Popen[bytes]:
    """Start a script with its arguments; one with a hash seed needs an interpreter of its own."""
    if "PYTHONHASHSEED" not in environment:
        return ForkedScript(command, environment, output)
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=file, stderr=file
        )


class ForkedScript:
    """A script that runs in a forked process; it is used like a ``subprocess.Popen``."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> None:
        self._process = _CONTEXT.Process(
            target=_run, args=(list(command), dict(environment), str(output))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None if the process is running."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process; subprocess.TimeoutExpired if it takes longer."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("forked process", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it is running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


def _run(command: list[str], environment: dict[str, str], output: str) -> None:
    """Run a script in the forked process, as a new interpreter would."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()
    try:
        runpy.run_path(command[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
