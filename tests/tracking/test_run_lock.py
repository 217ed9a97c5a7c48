"""A run is running while a process owns its lock, and interrupted after that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.tracking import RunFolder, RunManifest
from ratchet.tracking.run_lock import RunLock, runners

HOLD = """
import sys
from pathlib import Path
from ratchet.tracking.run_lock import RunLock
presence = RunLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def hold(folder: RunFolder) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
    assert process.stdout.readline() == "held\n"
    return process  # type: ignore[no-any-return]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, RunManifest(run_id="nip-1", name="nip"))


def test_a_killed_run_is_interrupted(folder: RunFolder) -> None:
    process = hold(folder)
    assert folder.status == "running"
    assert [runner.pid for runner in runners(folder.path)] == [process.pid]
    process.kill()
    process.wait()
    assert folder.manifest.status == "running"
    assert folder.status == "interrupted"


def test_a_run_is_running_while_one_of_its_processes_is_alive(folder: RunFolder) -> None:
    other = hold(folder)
    mine = RunLock(folder.path)
    assert {runner.pid for runner in runners(folder.path)} == {other.pid, os.getpid()}
    mine.release()
    assert folder.status == "running"
    other.kill()
    other.wait()
    assert folder.status == "interrupted"


def test_leftovers_of_killed_processes_are_removed_by_the_next(folder: RunFolder) -> None:
    for _ in range(3):
        process = hold(folder)
        process.kill()
        process.wait()
    presence = RunLock(folder.path)
    assert len(list((folder.path / ".running").iterdir())) == 1
    presence.release()
    assert list((folder.path / ".running").iterdir()) == []


@pytest.mark.parametrize("status", ["completed", "failed", "interrupted", "cancelled"])
def test_the_status_of_an_ended_run_does_not_change(folder: RunFolder, status: str) -> None:
    folder.update(status=status)
    assert folder.status == status
