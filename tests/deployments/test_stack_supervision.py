"""The local stack starts, supervises and stops its services, here processes that only sleep."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from deployments import local_stack, stack_services
from deployments.local_stack import LocalStack, LocalStackError, shut_down, stop_leftovers
from deployments.stack_services import StackService
from flows.process.stack_file import ProcessMark, Stack, read_stack

SLEEP = "import time; time.sleep(60)"
WITH_CHILD = (
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time;"
    " time.sleep(60)']); time.sleep(60)"
)
STUBBORN = """import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ignored", flush=True)
time.sleep(60)"""
FAILING = "import sys; sys.exit('no such table')"


def use_parts(monkeypatch: pytest.MonkeyPatch, *programs: str, healthy: bool = True) -> None:
    def services(home: Path, stack: Stack, *, worker: bool) -> list[list[StackService]]:
        return [
            [
                StackService(
                    f"part{i}",
                    [sys.executable, "-c", program],
                    dict(os.environ),
                    home / "logs" / f"part{i}.log",
                    lambda: healthy,
                )
            ]
            for i, program in enumerate(programs)
        ]

    monkeypatch.setattr(local_stack, "stack_services", services)
    monkeypatch.setattr(local_stack, "recover", lambda home, stack: None)


def alive(marks: dict[str, ProcessMark]) -> list[str]:
    return [name for name, mark in marks.items() if mark.is_alive()]


@pytest.mark.slow
def test_a_stack_records_its_address_and_stops_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_parts(monkeypatch, SLEEP, WITH_CHILD)
    supervisor = LocalStack(tmp_path)
    stack = supervisor.start()
    assert read_stack(tmp_path) == stack
    assert stack.is_up()
    assert alive(stack.processes) == ["part0", "part1"]
    parent = psutil.Process(stack.processes["part1"].pid)
    deadline = time.monotonic() + 300
    while not (children := parent.children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    supervisor.stop()
    assert alive(stack.processes) == []
    assert not any(child.is_running() for child in children), "children of services must end too"
    assert read_stack(tmp_path) is None


def test_a_service_that_exits_early_is_reported_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_parts(monkeypatch, FAILING, healthy=False)
    with pytest.raises(LocalStackError, match=r"part0 exited(.|\n)*no such table"):
        LocalStack(tmp_path).start()
    assert "Starting the part0" in capsys.readouterr().out
    assert read_stack(tmp_path) is None


@pytest.mark.slow
def test_a_service_that_dies_is_restarted_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_parts(monkeypatch, SLEEP, WITH_CHILD)
    monkeypatch.setattr(local_stack, "FIRST_DELAY", 0.05)
    supervisor = LocalStack(tmp_path)
    old = supervisor.start()
    parent = psutil.Process(old.processes["part1"].pid)
    wait_until(parent.children)
    (child,) = parent.children()
    parent.kill()
    wait_until(lambda: supervisor.watch() or not child.is_running())
    wait_until(
        lambda: supervisor.watch() or alive(supervisor.stack.processes) == ["part0", "part1"]
    )
    new = read_stack(tmp_path)
    assert new is not None
    assert new.is_up()
    assert new.processes["part0"] == old.processes["part0"]
    assert new.processes["part1"] != old.processes["part1"]
    assert "part1 exited with exit code -9" in capsys.readouterr().err
    supervisor.stop()
    assert alive(new.processes) == []


def test_a_crash_loop_is_reported_and_delays_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_parts(monkeypatch, SLEEP, FAILING)
    monkeypatch.setattr(local_stack, "FIRST_DELAY", 0.01)
    supervisor = LocalStack(tmp_path)
    supervisor.start()
    output = ""

    def is_reported() -> bool:
        nonlocal output
        supervisor.watch()
        output += capsys.readouterr().err
        return "crash loop: 4 early exits in a row" in output

    wait_until(is_reported)
    assert "no such table" in output
    assert alive(supervisor.stack.processes) == ["part0"]
    supervisor.stop()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_service_that_never_becomes_healthy_stops_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_parts(monkeypatch, SLEEP, healthy=False)
    monkeypatch.setattr(local_stack, "_SILENT_SECONDS", 0.2)
    before = psutil.Process().children()
    with pytest.raises(LocalStackError, match="is not healthy, and wrote nothing"):
        LocalStack(tmp_path).start()
    assert psutil.Process().children() == before


def test_processes_that_ignore_sigterm_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ignored\n"
    from deployments.local_stack import terminate_processes

    mark = ProcessMark.from_pid(process.pid)
    terminate_processes([mark], seconds=0.2)
    assert not mark.is_alive()


def test_leftovers_of_a_killed_stack_are_stopped(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", SLEEP])
    gone = ProcessMark(pid=child.pid, started=1.0)
    mark = ProcessMark.from_pid(child.pid)
    Stack(1, 2, True, gone, {"prefect": mark}).write(tmp_path)
    assert stop_leftovers(tmp_path) == ["prefect"]
    assert not mark.is_alive()
    assert read_stack(tmp_path) is None


def test_a_process_with_a_reused_pid_is_not_stopped(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", SLEEP])
    other = ProcessMark(pid=child.pid, started=1.0)
    Stack(1, 2, True, other, {"prefect": other}).write(tmp_path)
    assert shut_down(tmp_path) == []
    assert child.poll() is None
    child.kill()
    child.wait()


def test_a_running_stack_is_not_started_twice(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", SLEEP])
    Stack(1, 2, True, ProcessMark.from_pid(child.pid)).write(tmp_path)
    with pytest.raises(LocalStackError, match=r"is already running.*workflowType=machine_learning"):
        stop_leftovers(tmp_path)
    child.kill()
    child.wait()


def test_an_occupied_port_is_replaced() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert stack_services.free_port(port) not in (0, port)
    assert stack_services.free_port(port) == port


def test_a_service_that_never_starts_is_retried_forever(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    child = local_stack.SupervisedProcess(
        StackService("part", [sys.executable, "-c", ""], {}, log, lambda: False)
    )
    child.process.wait()
    child._exits = 5000
    child.schedule_restart()
    assert child.restart_at is not None
    assert child.restart_at <= time.monotonic() + local_stack.LONGEST_DELAY
