"""Threads, the sandbox for tested programs, and ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from flows.process.checks.base import Check, CheckResult, Places, good, warning
from flows.process.stack_file import running_stack


def threads(places: Places) -> Iterator[Check]:
    """Say how many threads numerical libraries take."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    details = f"{threads} per process, {cores} cores"
    if threads == "1":
        yield good("threads", details)
    else:
        advice = "small nets are fastest with one: `export OMP_NUM_THREADS=1`"
        yield warning("threads", f"{details}; {advice}")


def ports(places: Places) -> Iterator[Check]:
    """Say which of the usual ports are free."""
    stack = running_stack(places.home)
    if stack is not None:
        details = f"Prefect {stack.prefect_port}, MLflow {stack.mlflow_port}: the local stack is up"
        yield Check("ports", CheckResult.GOOD, details)
        return
    for port in (4200, 5000):
        with socket.socket() as probe:
            probe.settimeout(1)
            taken = probe.connect_ex(("127.0.0.1", port)) == 0
        details = f"{port} is taken; `ratchet up` will use another" if taken else f"{port} is free"
        yield Check("port", CheckResult.WARNING if taken else CheckResult.GOOD, details)


def sandbox(places: Places) -> Iterator[Check]:
    """Say what keeps tested programs, which nobody has read, from this machine."""
    from ratchet.errors import SandboxError
    from ratchet.scenarios.sandbox.programs import sandbox_isolation

    try:
        isolation = sandbox_isolation()
    except SandboxError as error:
        yield Check("sandbox", CheckResult.BAD, str(error))
        return
    if isolation.left_open:
        details = f"nothing keeps tested programs from {' or '.join(isolation.left_open)}"
        yield warning("sandbox", details)
        return
    landlock = f"Landlock {isolation.landlock}" if isolation.landlock else "no Landlock"
    spaces = ", ".join(isolation.namespaces) or "none allowed"
    yield good("sandbox", f"seccomp, {landlock}, namespaces: {spaces}")
