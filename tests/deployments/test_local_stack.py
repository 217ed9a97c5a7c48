"""The real servers: they listen only on the loopback interface and stop completely."""

from __future__ import annotations

import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from deployments.local_stack import stack_command
from flows.process.stack_file import ProcessMark, Stack, read_stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def ratchet(command: str, home: Path, **options: object) -> subprocess.CompletedProcess[str]:
    words = stack_command(command, home, **options)
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


def family(stack: Stack) -> list[psutil.Process]:
    parents = [psutil.Process(mark.pid) for mark in stack.processes.values()]
    return [p for parent in parents for p in (parent, *parent.children(recursive=True))]


@pytest.mark.exhaustive
def test_up_detached_and_down(tmp_path: Path) -> None:
    done = ratchet("up", tmp_path, detach=True)
    assert done.returncode == 0, done.stdout + done.stderr
    stack = read_stack(tmp_path)
    assert stack is not None
    processes = family(stack)
    try:
        assert set(stack.processes) == {"prefect", "mlflow", "worker"}
        assert stack.prefect_url in done.stdout
        for url in (stack.prefect_url, stack.mlflow_url):
            with urllib.request.urlopen(url, timeout=20) as page:
                assert b"<html" in page.read().lower()
        with urllib.request.urlopen(f"{stack.prefect_url}/ui-settings", timeout=20) as settings:
            assert stack.prefect_api_url.encode() in settings.read()
        addresses = {
            connection.laddr.ip
            for process in processes
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert addresses == {"127.0.0.1"}
        assert ratchet("up", tmp_path, detach=True).returncode == 2
    finally:
        down = ratchet("down", tmp_path)
    assert down.returncode == 0
    assert not any(process.is_running() for process in processes)
    assert read_stack(tmp_path) is None


@pytest.mark.in_turn(2, of="deployments")
def test_ctrl_c_stops_all_services_and_a_killed_stack_is_replaced(tmp_path: Path) -> None:
    first = start(tmp_path)
    old = wait_until_up(tmp_path, first)
    first.kill()
    first.wait()
    assert all(mark.is_alive() for mark in old.processes.values())
    second = start(tmp_path)
    new = wait_until_up(tmp_path, second)
    assert not any(mark.is_alive() for mark in old.processes.values())
    second.send_signal(signal.SIGINT)
    assert second.wait(240) == 0
    assert not any(mark.is_alive() for mark in new.processes.values())
    assert read_stack(tmp_path) is None


def start(home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(stack_command("up", home, worker=False))


def wait_until_up(home: Path, process: subprocess.Popen[bytes]) -> Stack:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None
        stack = read_stack(home)
        mine = stack is not None and stack.supervisor == ProcessMark.from_pid(process.pid)
        if stack is not None and mine and stack.is_up():
            return stack
        time.sleep(0.3)
    raise AssertionError("the stack did not start")
