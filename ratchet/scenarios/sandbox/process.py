"""The sandboxed subprocess, seen from outside: start it with its jobs, read its lines, end it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import ratchet
from ratchet.errors import SandboxError

Job: TypeAlias = "dict[str, Any]"
"""One program as the subprocess reads it; see ``sandboxed.execution.run_program``."""

_LOGGER = logging.getLogger(__name__)
_CODE = (
    "import sys; sys.path.append({root!r});"
    "from ratchet.scenarios.sandbox.sandboxed.worker import main;"
    "sys.path.remove({root!r}); main()"
)
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8", "PATH": ""}


@dataclass(frozen=True)
class SandboxIsolation:
    """Active layers on this machine, in addition to the resource limits."""

    namespaces: tuple[str, ...]
    landlock: int
    seccomp: bool
    unprivileged: bool

    @property
    def no_network(self) -> bool:
        """Whether the kernel keeps programs from the network."""
        return self.seccomp or "network" in self.namespaces

    @property
    def no_writing(self) -> bool:
        """Whether the kernel keeps programs from making and changing files."""
        return self.landlock > 0 or self.seccomp

    @property
    def no_processes(self) -> bool:
        """Whether the kernel keeps programs from starting others."""
        return self.seccomp or self.unprivileged

    @property
    def no_one_in_sight(self) -> bool:
        """Whether programs see no other process."""
        return "pid" in self.namespaces

    @property
    def left_open(self) -> tuple[str, ...]:
        """Resources that the kernel does not protect on this machine."""
        protections = {
            "using the network": self.no_network,
            "making empty files": self.no_writing,
            "starting processes": self.no_processes,
        }
        return tuple(what for what, holds in protections.items() if not holds)


class SandboxProcess:
    """One sandboxed subprocess with its jobs and its own empty folder; a context."""

    def __init__(self, time_limit: float, memory_mb: int, groups: list[list[Job]]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ratchet-sandbox-")
        root = str(Path(ratchet.__file__).parents[1])
        options = json.dumps({"time_limit": time_limit, "memory_mb": memory_mb})
        command = [sys.executable, "-s", "-P", "-S", "-B", "-c", _CODE.format(root=root), options]
        with tempfile.TemporaryFile() as file:
            file.write(b"".join(json.dumps(group).encode() + b"\n" for group in groups))
            file.seek(0)
            self._process = subprocess.Popen(
                command,
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._folder.name,
                env=_ENVIRONMENT,
                start_new_session=True,
            )
        assert self._process.stdout is not None  # opened with a pipe
        self._out = self._process.stdout

    def __enter__(self) -> SandboxProcess:
        first = self._out.readline()
        try:
            report = json.loads(first)
        except ValueError:
            raise self._not_started() from None
        self.isolation = SandboxIsolation(
            namespaces=tuple(report["namespaces"]),
            landlock=report["landlock"],
            seccomp=report["seccomp"],
            unprivileged=report["unprivileged"],
        )
        _warn_of_weakness(self.isolation)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def lines(self) -> Iterable[bytes]:
        """Return the complete lines of results."""
        for line in self._out:
            if line.endswith(b"\n"):
                yield line

    def close(self) -> None:
        """Kill its remaining processes, and remove its folder."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._folder.cleanup()

    def _not_started(self) -> SandboxError:
        _, stderr = self._process.communicate()
        self.close()
        tail = stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["nothing"]
        return SandboxError(
            f"sandbox: the subprocess that runs programs ended with {self._process.returncode}"
            f" before it started; its output: {tail[0]}. Expected {sys.executable} to start in an"
            " empty folder with an empty environment."
        )


@cache
def _warn_of_weakness(isolation: SandboxIsolation) -> None:
    """Log once what the kernel doesn't keep programs from here."""
    if isolation.left_open:
        _LOGGER.warning(
            "sandbox: on this machine, only limits on time, memory and file size keep tested"
            " programs from %s. Don't test untrusted programs here.",
            " or ".join(isolation.left_open),
        )
    elif not isolation.no_one_in_sight:
        _LOGGER.info(
            "sandbox: this machine allows no PID namespace; tested programs can see that other"
            " processes exist, but the kernel keeps them from doing anything to them."
        )
