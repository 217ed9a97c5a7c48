"""Run untrusted programs, and return which pass their tests.

They run in subprocesses with limits on CPU time, memory, files, processes and network, never in
this process. Expected outputs are compared here and never visible to a program.

Layers by system: on Linux (x86-64, AArch64), seccomp and Landlock forbid sockets, new processes,
signals, and any write or change of a file or of another process, for all users; namespaces are
added if the system allows them. On other systems, only the resource limits apply, and sockets are
merely hidden: :func:`sandbox_isolation` returns the layers of this machine.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import ratchet
from ratchet.errors import SandboxError
from ratchet.scenarios.sandbox.suites import TestSuite, Value

Failure = Literal[
    "wrong_answer",
    "error",
    "exited",
    "too_many_steps",
    "timeout",
    "out_of_memory",
    "too_much_output",
    "bad_output",
    "killed",
    "no_result",
]
Status = Literal["passed"] | Failure
_FAILURES: tuple[Failure, ...] = get_args(Failure)

BUGGY = frozenset({"wrong_answer", "error", "exited", "too_many_steps", "bad_output"})
"""Statuses of buggy programs, the same on every machine; programs that exceed time or memory are
neither correct nor buggy, so that labels do not depend on the machine.
"""

DEFAULT_TIME_LIMIT = 2.0
DEFAULT_MEMORY_MB = 256

_PASSING_IN_WORKER = "finished"

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


@dataclass(frozen=True)
class Program:
    """A program and its tests.

    ``max_steps`` limits its instructions, which unlike time are the same on every machine.
    ``tolerant``: like sites for such problems, accepts a value instead of a list of one value,
    different whitespace in the output, and rounding differences of numbers.
    """

    source: str
    tests: TestSuite
    max_steps: int | None = None
    tolerant: bool = False


@dataclass(frozen=True)
class ProgramResult:
    """Result of a program.

    ``failed_case`` is the index of the first test that failed, None if the program passed or did
    not reach its tests. ``outputs`` are those of the tests up to the end of the run.
    """

    status: Status
    outputs: tuple[Value, ...] = ()
    failed_case: int | None = None
    detail: str = ""
    cpu_seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every test passed."""
        return self.status == "passed"


def run_programs(
    programs: Sequence[Program],
    *,
    time_limit: float = DEFAULT_TIME_LIMIT,
    memory_mb: int = DEFAULT_MEMORY_MB,
    workers: int | None = None,
    group_size: int = 1,
) -> list[ProgramResult]:
    """Run programs on their tests concurrently; return the results in the programs' order.

    A program whose subprocess was lost is run again, in a separate process and with twice the time,
    so that other programs do not affect it. One that ran out of time is not retried: its CPU time
    is measured, and it would time out again.

    Parameters
    ----------
    time_limit
        CPU seconds of one program for all its tests. Waiting for a busy machine does not count, up
        to ten times this limit in wall time (10 s at least).
    memory_mb
        Its address space in MiB.
    workers
        Number of concurrent subprocesses (default: the number of processors).
    group_size
        Programs in one process, for speed: more than one only for trusted programs, since they
        might change the state of the next one.
    """
    if not programs:
        return []
    jobs = [_job(index, program) for index, program in enumerate(programs)]
    groups = [jobs[i : i + group_size] for i in range(0, len(jobs), group_size)]
    count = min(workers or os.cpu_count() or 1, -(-len(groups) // 4))
    results_by_job: dict[int, ProgramResult] = {}
    with ThreadPoolExecutor(count) as pool:
        batches = [groups[i::count] for i in range(count)]
        for results in pool.map(lambda b: _run_batch(b, programs, time_limit, memory_mb), batches):
            results_by_job.update(results)
        again = [[[job]] for i, job in enumerate(jobs) if i not in results_by_job]
        longer = 2 * time_limit
        for results in pool.map(lambda b: _run_batch(b, programs, longer, memory_mb), again):
            results_by_job.update(results)
    lost = ProgramResult("killed", detail="the sandboxed process was lost")
    return [results_by_job.get(i, lost) for i in range(len(programs))]


@cache
def sandbox_isolation() -> SandboxIsolation:
    """Return which layers hold on this machine."""
    with SandboxProcess(1.0, DEFAULT_MEMORY_MB, []) as worker:
        return worker.isolation


def _job(index: int, program: Program) -> Job:
    tests = program.tests
    variable_names: list[str] = []
    if tests.mode == "variables":
        expected = [case.expected for case in tests.cases if isinstance(case.expected, Mapping)]
        variable_names = sorted({name for variables in expected for name in variables})
    return {
        "index": index,
        "source": program.source,
        "mode": tests.mode,
        "entry": tests.entry,
        "givens": [case.given for case in tests.cases],
        "wanted": variable_names,
        "max_steps": program.max_steps,
    }


def _run_batch(
    groups: list[list[Job]], programs: Sequence[Program], time_limit: float, memory_mb: int
) -> dict[int, ProgramResult]:
    """Run groups of jobs in one subprocess; jobs lost with it are omitted."""
    results_by_job: dict[int, ProgramResult] = {}
    with SandboxProcess(time_limit, memory_mb, groups) as worker:
        for line in worker.lines():
            index, status, seconds, payload = line.split(b" ", 3)
            job = int(index)
            results_by_job[job] = _result(programs[job], status.decode(), float(seconds), payload)
    return results_by_job


def _result(program: Program, status: str, seconds: float, payload: bytes) -> ProgramResult:
    """Compare a program's result with the expected one."""
    if status != _PASSING_IN_WORKER:
        return ProgramResult(_as_status(status), cpu_seconds=seconds)
    try:
        data = json.loads(payload)
        status, outputs, detail = data["status"], data["outputs"], str(data["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ProgramResult("bad_output", detail="not a result", cpu_seconds=seconds)
    if not isinstance(outputs, list) or len(outputs) > len(program.tests.cases):
        return ProgramResult("bad_output", detail="not a result", cpu_seconds=seconds)
    for index, (case, output) in enumerate(zip(program.tests.cases, outputs, strict=False)):
        if not _agree(case.expected, output, program):
            return ProgramResult("wrong_answer", tuple(outputs), index, "", seconds)
    if status == "finished" and len(outputs) == len(program.tests.cases):
        return ProgramResult("passed", tuple(outputs), None, "", seconds)
    failed = len(outputs) if outputs else None
    return ProgramResult(_as_status(status), tuple(outputs), failed, detail, seconds)


def _as_status(text: object) -> Status:
    """Check a status that a program may have forged; it cannot forge a pass."""
    return next((known for known in _FAILURES if known == text), "bad_output")


def _agree(expected: Value, output: Value, program: Program) -> bool:
    """Compare as Python does (1 == 1.0 == True), printed text line by line."""
    mode = program.tests.mode
    if mode == "stdio" and isinstance(expected, str) and isinstance(output, str):
        if program.tolerant and _same_words(expected.split(), output.split()):
            return True
        return _lines(expected) == _lines(output)
    if mode == "variables" and isinstance(expected, dict) and isinstance(output, dict):
        return all(name in output and output[name] == expected[name] for name in expected)
    if program.tolerant and isinstance(expected, list) and len(expected) == 1:
        return output in (expected, expected[0]) or _is_close(expected[0], output)
    return expected == output or (program.tolerant and _is_close(expected, output))


def _same_words(expected: Sequence[str], output: Sequence[str]) -> bool:
    return len(expected) == len(output) and all(
        one == other or _is_close(_number(one), _number(other))
        for one, other in zip(expected, output, strict=True)
    )


def _number(word: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return None


def _is_close(one: Value, other: Value) -> bool:
    """Compare numbers that aren't both integers: counts must be exact."""
    if not isinstance(one, int | float) or not isinstance(other, int | float):
        return False
    if isinstance(one, int) and isinstance(other, int):
        return False
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-8)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
