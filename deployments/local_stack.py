"""The local stack: a Prefect server, an MLflow server and a worker, as child processes.

``ratchet up`` runs this module. All files lie under ``<home>``, all ports on the loopback
interface unless ``--host`` says otherwise; ``<home>/stack.json`` says where what is.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from deployments.access import make_logins
from deployments.children import Child, tail
from deployments.parts import Part, free_port, stack_parts
from deployments.recovering import recover
from deployments.stopping import stop_marks
from flows.process.logins import FILE_NAME as LOGINS
from flows.process.messages import print_error, print_plain, print_warning
from flows.process.stack_file import FILE_NAME, LOOPBACK, POOL, ProcessMark, Stack, read_stack
from ratchet.errors import RatchetError

_START_SECONDS = 180.0


class LocalStackError(RatchetError, RuntimeError):
    """A part of the local stack did not start."""


class LocalStack:
    """The servers and the worker, started in order and stopped in the opposite one.

    Where a wanted port is not free, another is taken.
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
        self._running: dict[str, Child] = {}
        try:
            ports = free_port(prefect_port, host), free_port(mlflow_port, host)
        except OSError as error:
            raise LocalStackError(
                f"--host: got {host!r}, where no server can listen ({error}); expected an address"
                " of this machine, or 0.0.0.0 for all it has"
            ) from error
        self.stack = Stack(
            *ports,
            ready=False,
            supervisor=ProcessMark.of(os.getpid()),
            host=host,
        )

    def start(self, stop: threading.Event | None = None) -> Stack:
        """Start everything and wait until it is healthy.

        Raises
        ------
        LocalStackError
            If a part ends or is not healthy in time; what was started is stopped.
        """
        stop = stop or threading.Event()
        stop_leftovers(self.home)
        if self.stack.is_open:
            make_logins(self.home)
        try:
            for number, parts in enumerate(stack_parts(self.home, self.stack, worker=self._worker)):
                for part in parts:
                    self._launch(part)
                for part in parts:
                    self._wait(part, stop)
                if stop.is_set():
                    return self.stack
                if number == 0:  # the servers, before a worker takes new runs
                    recover(self.home, self.stack)
        except BaseException:
            self.stop()
            raise
        self._write(ready=True)
        return self.stack

    def watch(self) -> None:
        """Start again what has ended by itself, later each time; the others go on."""
        for name, child in self._running.items():
            if child.due is None and child.ended() is not None:
                child.note_end()
            elif child.due is not None and time.monotonic() >= child.due and self._may_start(name):
                child.start_again()
                self._write(ready=True)

    def _may_start(self, name: str) -> bool:
        """Return whether what a part needs is there; a worker's lost runs are crashed before."""
        if name != "worker":
            return True
        needed = [child.part for other, child in self._running.items() if other != name]
        if not all(part.is_healthy() for part in needed):
            return False
        recover(self.home, self.stack)
        return True

    def stop(self) -> None:
        """Stop everything with all its children, the worker before the servers it needs."""
        alive = {n: child for n, child in self._running.items() if child.ended() is None}
        stop_marks([child.mark for name, child in alive.items() if name == "worker"])
        stop_marks([child.mark for name, child in alive.items() if name != "worker"])
        for child in alive.values():
            child.process.wait()
        self._running.clear()
        (self.home / FILE_NAME).unlink(missing_ok=True)

    def _launch(self, part: Part) -> None:
        self._running[part.name] = Child(part)
        self._write(ready=False)

    def _wait(self, part: Part, stop: threading.Event) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not part.is_healthy():
            code = self._running[part.name].ended()
            if code is not None:
                raise LocalStackError(
                    f"the {part.name} ended by itself with exit code {code}. The end of"
                    f" {part.log}:\n{tail(part.log)}"
                )
            if time.monotonic() > deadline:
                raise LocalStackError(
                    f"the {part.name} was not healthy after {_START_SECONDS:.0f} s. The end of"
                    f" {part.log}:\n{tail(part.log)}"
                )
            if stop.wait(0.3):
                return

    def _write(self, *, ready: bool) -> None:
        marks = {name: child.mark for name, child in self._running.items()}
        self.stack = replace(self.stack, ready=ready, processes=marks)
        self.stack.write(self.home)


def stop_leftovers(home: Path) -> list[str]:
    """Stop what an earlier stack in ``home`` has left running; return the names of what was.

    Raises
    ------
    LocalStackError
        If that stack is up and well.
    """
    old = read_stack(home)
    if old is None:
        return []
    if old.is_up() and old.supervisor.pid != os.getpid():
        raise LocalStackError(
            f"the stack of {home} is up already: Prefect {old.prefect_url}, MLflow"
            f" {old.mlflow_url}. Stop it with `ratchet down`."
        )
    return _stop_all(old, home)


def shut_down(home: Path) -> list[str]:
    """Stop the stack of ``home``, its supervisor first; return the names of what was running."""
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


def detach(home: Path, arguments: list[str]) -> None:
    """Start the stack in the background and wait until it is up.

    Raises
    ------
    LocalStackError
        If it does not come up.
    """
    log_path = home / "logs" / "stack.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "deployments.local_stack", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while process.poll() is None:
        stack = read_stack(home)
        if stack is not None and stack.supervisor.pid == process.pid and stack.is_up():
            _announce(stack, home)
            return
        time.sleep(0.3)
    raise LocalStackError(f"the stack did not come up. The end of {log_path}:\n{tail(log_path)}")


def _stop_all(stack: Stack, home: Path) -> list[str]:
    alive = [name for name, mark in stack.processes.items() if mark.is_alive()]
    others = [] if stack.supervisor.pid == os.getpid() else [stack.supervisor]
    stop_marks(others, seconds=30.0)
    stop_marks(list(stack.processes.values()))
    (home / FILE_NAME).unlink(missing_ok=True)
    return alive


def _announce(stack: Stack, home: Path) -> None:
    print_plain(f"Prefect  {stack.prefect_url}")
    print_plain(f"MLflow   {stack.mlflow_url}")
    if "worker" in stack.processes:
        print_plain(f"Worker   takes runs from the work pool {POOL!r}; `ratchet deploy` adds some")
    if stack.is_open:
        print_plain(f"Log in   with what {home / LOGINS} says; it is asked for by both servers")
        print_warning(
            f"the servers listen at {stack.host} without TLS: whoever reads along on the network"
            " sees the passwords. Put a proxy with TLS before them."
        )


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deployments.local_stack")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up")
    up.add_argument("--prefect-port", type=int, default=0)
    up.add_argument("--mlflow-port", type=int, default=0)
    up.add_argument("--host", default=LOOPBACK)
    up.add_argument("--no-worker", action="store_true")
    up.add_argument("--detach", action="store_true")
    down = commands.add_parser("down")
    for command in (up, down):
        command.add_argument("--home", type=Path, default=Path(".ratchet"))
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run ``up`` or ``down``; return the exit code."""
    options = _parse(arguments)
    home: Path = options.home.resolve()
    try:
        if options.command == "down":
            stopped = shut_down(home)
            print_plain(f"Stopped: {', '.join(stopped)}." if stopped else "Nothing was running.")
        elif options.detach:
            stop_leftovers(home)
            detach(home, [argument for argument in arguments[1:] if argument != "--detach"])
        else:
            serve(
                LocalStack(
                    home,
                    options.prefect_port,
                    options.mlflow_port,
                    worker=not options.no_worker,
                    host=options.host,
                )
            )
    except RatchetError as error:
        print_error(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
