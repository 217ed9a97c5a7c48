"""The sandboxed subprocess: forks a process for every program, limits it and reads its result.

Reads lists of jobs, one line of JSON each, and writes one line for each job: index, status, CPU
seconds and the program's output. The first line written contains the active layers.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from ratchet.scenarios.sandbox.sandboxed import isolation, seccomp
from ratchet.scenarios.sandbox.sandboxed.execution import MAX_OUTPUT, run_program

_RESULT: Final = 3
_RULES: Final = 4
_NULL: Final = 5
_MAX_FILES = 32
_MAX_THREADS = 4096
"""Limit for all processes of the user together; root has no limit."""
_MAX_RESULT = 2 * MAX_OUTPUT
_GRACE: Final = 0.25
"""CPU seconds past the limit in which the kernel's own signal may end a program."""
_WALL_FACTOR: Final = 10
"""Wall time of a process in its CPU limits (at least a second each): so slow may a machine be."""

Job: TypeAlias = "dict[str, Any]"


class Worker:
    """Runs programs sequentially, in processes that are discarded.

    Parameters
    ----------
    time_limit
        CPU seconds of a program.
    memory_mb
        Its address space, in MiB.
    is_first
        Whether this process is the first of a new PID namespace.
    """

    def __init__(self, time_limit: float, memory_mb: int, *, is_first: bool) -> None:
        self.time_limit = time_limit
        self.memory = memory_mb * 2**20
        self.is_first = is_first
        rules, self.landlock = isolation.make_landlock_rules()
        self.filter = seccomp.make_seccomp_filter()
        null = os.open(os.devnull, os.O_RDWR)
        rules, null = (fcntl.fcntl(max(n, 0), fcntl.F_DUPFD, _MAX_FILES) for n in (rules, null))
        for number, descriptor in ((_RESULT, null), (_RULES, rules), (_NULL, null)):
            os.dup2(descriptor, number)  # so that no pipe gets these numbers

    def run(self, jobs: list[Job]) -> Iterator[tuple[Job, str, float, bytes]]:
        """Run programs in one process; those it didn't complete, in one process each.

        Yields job, status, CPU seconds and the program's output.
        """
        lines, status, seconds = self._run_in_one_process(jobs)
        for job, line in zip(jobs, lines, strict=False):
            yield job, "finished", seconds / len(jobs), line
        if len(jobs) == 1 and not lines:
            yield jobs[0], status, seconds, b""
            return
        for job in jobs[len(lines) :]:
            yield from self.run([job])

    def _run_in_one_process(self, jobs: list[Job]) -> tuple[list[bytes], str, float]:
        """Return the lines that were finished, why there are no more, and the CPU seconds."""
        reading, writing = os.pipe()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        worker = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_programs(jobs, writing, worker)
        os.close(writing)
        try:
            payload, status = self._read(pid, reading)
        finally:
            os.close(reading)
            _kill(pid)
            _kill(-pid)  # its group, which it can't leave
        _, wait_status = os.waitpid(pid, 0)
        self._kill_the_rest()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        *lines, _ = payload.split(b"\n")
        if not status:
            status = self._status(wait_status, seconds)
        return lines[: len(jobs)], status, seconds

    def _status(self, wait_status: int, seconds: float) -> str:
        if not os.WIFSIGNALED(wait_status):
            return "no_result"
        if os.WTERMSIG(wait_status) == signal.SIGPROF or seconds >= self.time_limit:
            return "timeout"
        return "killed"

    def _read(self, pid: int, reading: int) -> tuple[bytes, str]:
        """Read a result to its end, within limits on its size and on time.

        A program that waits for a slow machine continues; one that uses no CPU time ends, though it
        may write. One that ignores the signal at its limit of CPU time ends by this check of its
        clock. A deadline of wall time bounds all others.
        """
        chunks: list[bytes] = []
        size = 0
        patience = max(1.0, self.time_limit)
        last_cpu, last_wall = 0.0, time.monotonic()
        deadline = last_wall + _WALL_FACTOR * patience
        poller = select.poll()
        poller.register(reading, select.POLLIN)
        while True:
            if poller.poll(250):
                chunk = os.read(reading, 65536)
                chunks.append(chunk)
                size += len(chunk)
                if not chunk:
                    return b"".join(chunks), ""
                if size > _MAX_RESULT:
                    return b"", "too_much_output"
            cpu, now = _cpu_seconds(pid), time.monotonic()
            if cpu - last_cpu > 0.001:
                last_cpu, last_wall = cpu, now
            if now - last_wall > patience or now > deadline or cpu > self.time_limit + _GRACE:
                return b"", "timeout"

    def _kill_the_rest(self) -> None:
        if self.is_first:
            _kill(-1)  # all others in the namespace
            while True:
                try:
                    os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    return

    def _be_programs(self, jobs: list[Job], writing: int, worker: int) -> None:
        """Bind the forked process, run the programs in it, and end."""
        code = 1
        try:
            isolation.die_with_parent()
            if os.getppid() != worker:  # it ended before that held
                return
            os.setpgid(0, 0)
            os.dup2(writing, _RESULT)
            for standard in (0, 1, 2):
                os.dup2(_NULL, standard)
            os.closerange(_NULL, 2 * _MAX_FILES)
            self._limit()
            if self.landlock:
                isolation.apply_landlock_rules(_RULES)
            os.close(_RULES)
            if self.filter:
                seccomp.apply_seccomp_filter(self.filter)
            else:
                _hide_network()
            for job in jobs:
                _write(run_program(job) + b"\n")
            code = 0
        finally:
            os._exit(code)

    def _limit(self) -> None:
        seconds = int(self.time_limit) + 1
        for limit, value in (
            (resource.RLIMIT_AS, self.memory),
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_NOFILE, _MAX_FILES),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(limit, (value, value))
        _, hard_limit = resource.getrlimit(resource.RLIMIT_NPROC)
        threads = _MAX_THREADS if self.filter else 0
        if hard_limit == resource.RLIM_INFINITY or hard_limit > threads:
            resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
        signal.setitimer(signal.ITIMER_PROF, self.time_limit)


def _hide_network() -> None:
    """Hide sockets where the kernel can't forbid them; not a secure barrier."""
    for name in ("socket", "_socket"):
        sys.modules[name] = None  # type: ignore[assignment]


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(_RESULT, data) :]


def _kill(pid: int) -> None:
    # macOS refuses a signal to a group of which none is alive
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _cpu_seconds(pid: int) -> float:
    """Return a process's CPU time; its clock is found by number, so that no /proc is needed."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def main() -> None:
    """Run all jobs of the standard input."""
    options = json.loads(sys.argv[1])
    namespaces, unprivileged = isolation.leave_outside()
    isolation.die_with_parent()
    is_first = "pid" in namespaces
    if is_first:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            os._exit(0)
    isolation.drop_capabilities()
    isolation.die_with_parent()
    worker = Worker(options["time_limit"], options["memory_mb"], is_first=is_first)
    report = {
        "namespaces": namespaces,
        "landlock": worker.landlock,
        "seccomp": worker.filter is not None,
        "unprivileged": unprivileged,
    }
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    gc.freeze()
    jobs = sys.stdin.buffer
    for line in jobs:
        for job, status, seconds, result in worker.run(json.loads(line)):
            text = result.decode("utf-8", "replace")
            sys.stdout.write(f"{job['index']} {status} {seconds:.6f} {text}\n")
        sys.stdout.flush()
