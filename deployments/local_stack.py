"""The local stack: a Prefect server, an MLflow server and a worker, as child processes.

``ratchet up`` runs this module. All files are under ``<home>``, and all ports are on the loopback
interface unless ``--host`` is given; ``<home>/stack.json`` lists ports and processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from deployments.crash_recovery import recover
from deployments.stack_services import (
    StackService,
    create_credentials,
    free_port,
    stack_services,
)
from flows.process.messages import print_error, print_plain, print_warning
from flows.process.stack_file import (
    CREDENTIALS_FILE,
    LOOPBACK,
    POOL,
    STACK_FILE,
    ProcessMark,
    Stack,
    read_stack,
)
from ratchet.errors import RatchetError
from ratchet.tracking.silence import Silence, file_size
from ratchet.tracking.urls import mlflow_page

_SILENT_SECONDS = 180.0  # without a line in the log of a starting service
_TITLES = {"prefect": "Prefect server", "mlflow": "MLflow server", "worker": "worker"}
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


class LocalStackError(RatchetError, RuntimeError):
    """A service of the local stack did not start."""


class LocalStack:
    """The servers and the worker, started in order and stopped in reverse order.

    Uses any free port if a requested one is occupied.
    """

    def __init__(
        self,
        home: Path,
        prefect_port: int = 0,
        mlflow_port: int = 0,
        *,
        worker: bool = True,
        host: str = LOOPBACK,
    ) -> None:
        self.home = home.resolve()
        self._worker = worker
        self._running: dict[str, SupervisedProcess] = {}
        try:
            ports = free_port(prefect_port, host), free_port(mlflow_port, host)
        except OSError as error:
            raise LocalStackError(
                f"--host: cannot listen at {host!r} ({error}); expected an address of this machine,"
                " or 0.0.0.0 for all of them"
            ) from error
        self.stack = Stack(
            *ports,
            ready=False,
            supervisor=ProcessMark.from_pid(os.getpid()),
            host=host,
        )

    def start(self, stop: threading.Event | None = None) -> Stack:
        """Start all services and wait until they are healthy."""
        stop = stop or threading.Event()
        stop_leftovers(self.home)
        if self.stack.is_open:
            create_credentials(self.home)
        try:
            groups = stack_services(self.home, self.stack, worker=self._worker)
            for number, services in enumerate(groups):
                for service in services:
                    _print_start(service.name, self.home)
                    self._running[service.name] = SupervisedProcess(service)
                    self._write(ready=False)
                for service in services:
                    self._wait(service, stop)
                if stop.is_set():
                    return self.stack
                if number == 0:  # the servers, before a worker starts new runs
                    print_plain("Looking for interrupted runs.")
                    recover(self.home, self.stack)
        except BaseException:
            self.stop()
            raise
        self._write(ready=True)
        return self.stack

    def watch(self) -> None:
        """Restart services that have exited, with increasing delays; do not touch the others."""
        for name, running in self._running.items():
            if running.restart_at is None:
                if running.exit_code() is not None:
                    running.schedule_restart()
            elif time.monotonic() >= running.restart_at and self._can_start(name):
                running.restart()
                self._write(ready=True)

    def _can_start(self, name: str) -> bool:
        """Return whether a service's dependencies are healthy; first crash a worker's lost runs."""
        if name != "worker":
            return True
        required = [running.service for other, running in self._running.items() if other != name]
        if not all(service.is_healthy() for service in required):
            return False
        recover(self.home, self.stack)
        return True

    def stop(self) -> None:
        """Stop all services with their child processes, the worker before its servers."""
        alive = {n: running for n, running in self._running.items() if running.exit_code() is None}
        terminate_processes([running.mark for name, running in alive.items() if name == "worker"])
        terminate_processes([running.mark for name, running in alive.items() if name != "worker"])
        for running in alive.values():
            running.process.wait()
        self._running.clear()
        (self.home / STACK_FILE).unlink(missing_ok=True)

    def _wait(self, service: StackService, stop: threading.Event) -> None:
        silence = Silence()
        while not service.is_healthy():
            code = self._running[service.name].exit_code()
            log = f"Last lines of {service.log}:\n{tail(service.log)}"
            if code is not None:
                raise LocalStackError(f"the {service.name} exited with exit code {code}. {log}")
            if silence.seconds(file_size(service.log)) > _SILENT_SECONDS:
                raise LocalStackError(
                    f"the {service.name} is not healthy, and wrote nothing for"
                    f" {_SILENT_SECONDS:.0f} s. {log}"
                )
            if stop.wait(0.3):
                return

    def _write(self, *, ready: bool) -> None:
        marks = {name: running.mark for name, running in self._running.items()}
        self.stack = replace(self.stack, ready=ready, processes=marks)
        self.stack.write(self.home)


def stop_leftovers(home: Path) -> list[str]:
    """Stop the remaining services of an earlier stack in ``home``; return their names."""
    old = read_stack(home)
    if old is None:
        return []
    if old.is_up() and old.supervisor.pid != os.getpid():
        raise LocalStackError(
            f"the stack of {home} is already running: Prefect {old.prefect_url}, MLflow"
            f" {mlflow_page(old.mlflow_url)}. Stop it with `ratchet down`."
        )
    return _stop_all(old, home)


def shut_down(home: Path) -> list[str]:
    """Stop the stack of ``home``, its supervisor first; return the names of running services."""
    old = read_stack(home)
    return _stop_all(old, home) if old is not None else []


def serve(stack: LocalStack) -> None:
    """Run the stack until SIGINT or SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    stack.start(stop)
    try:
        if not stop.is_set():
            _announce(stack.stack, stack.home)
        while not stop.wait(1.0):
            stack.watch()
    finally:
        print_plain("Stopping.")
        stack.stop()


def stack_command(command: str, home: Path, **options: object) -> list[str]:
    """Return the command that runs :func:`main`; ``options`` of "up": see :class:`LocalStack`."""
    text = json.dumps({"command": command, "home": str(home), **options})
    return [sys.executable, "-P", "-m", "deployments.local_stack", text]


def detach(home: Path, options: Mapping[str, object]) -> None:
    """Start the stack in the background and wait until it is ready.

    ``options`` are arguments of :class:`LocalStack`.
    """
    log_path = home / "logs" / "stack.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            stack_command("up", home, **options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started: set[str] = set()
    while process.poll() is None:
        stack = read_stack(home)
        if stack is not None and stack.supervisor.pid == process.pid:
            for name in (each for each in stack.processes if each not in started):
                _print_start(name, home)
            started.update(stack.processes)
            if stack.is_up():
                _announce(stack, home)
                return
        time.sleep(0.3)
    raise LocalStackError(f"the stack did not start. Last lines of {log_path}:\n{tail(log_path)}")


def _stop_all(stack: Stack, home: Path) -> list[str]:
    alive = [name for name, mark in stack.processes.items() if mark.is_alive()]
    others = [] if stack.supervisor.pid == os.getpid() else [stack.supervisor]
    terminate_processes(others, seconds=30.0)
    terminate_processes(list(stack.processes.values()))
    (home / STACK_FILE).unlink(missing_ok=True)
    return alive


def _print_start(name: str, home: Path) -> None:
    print_plain(f"Starting the {_TITLES.get(name, name)} (log: {home / 'logs' / f'{name}.log'}).")


def _announce(stack: Stack, home: Path) -> None:
    print_plain(f"Prefect  {stack.prefect_url}")
    print_plain(f"MLflow   {mlflow_page(stack.mlflow_url)}")
    if "worker" in stack.processes:
        print_plain(f"Worker   runs flows of the work pool {POOL!r}; `ratchet deploy` adds some")
    if stack.is_open:
        print_plain(f"Log in   with the credentials in {home / CREDENTIALS_FILE}, at both servers")
        print_warning(
            f"the servers listen at {stack.host} without TLS: passwords cross the network in clear"
            " text. Put a TLS proxy in front of them."
        )


def main(text: str) -> int:
    """Run the command ``up`` or ``down`` with options in JSON; return the exit code."""
    options = json.loads(text)
    command = options.pop("command")
    detached = options.pop("detach", False)
    home = Path(options.pop("home")).resolve()
    try:
        if command == "down":
            stopped = shut_down(home)
            print_plain(f"Stopped: {', '.join(stopped)}." if stopped else "Nothing was running.")
        elif detached:
            stop_leftovers(home)
            detach(home, options)
        else:
            serve(LocalStack(home, **options))
    except RatchetError as error:
        print_error(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
