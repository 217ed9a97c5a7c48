"""Durations and waits do not depend on adjustments of the system's time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from flows.runs.run_view import view_run
from ratchet.tracking.boot_clock import BootTime, boot_id
from ratchet.tracking.live_file import LIVE_FILE, LiveFile, read_live, stalls_of
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_lock import RunLock

REAL_TIME = time.time
STAGE = SimpleNamespace(arm="main", name="train", iteration=3)


@pytest.fixture
def jump(monkeypatch):
    """Set the system's time forward or back by some seconds."""
    return lambda seconds: monkeypatch.setattr(time, "time", lambda: REAL_TIME() + seconds)


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_elapsed_time_does_not_jump(jump, seconds):
    start = BootTime.now()
    jump(seconds)
    assert 0 <= start.elapsed() < 60
    assert abs(start.system_now() - REAL_TIME()) < 60
    assert start.forward_jump() == pytest.approx(max(0, seconds), abs=60)


def test_processes_of_a_boot_share_the_clock_and_other_boots_do_not():
    code = (
        "from dataclasses import asdict; import json;"
        "from ratchet.tracking.boot_clock import BootTime;"
        "print(json.dumps(asdict(BootTime.now())))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    other = BootTime(**json.loads(told))
    assert other.boot == boot_id()
    assert 0 <= other.elapsed() < 60
    assert BootTime("another", other.seconds, other.system).elapsed() is None
    assert BootTime("another", other.seconds, other.system).forward_jump() == 0.0


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_run_never_ends_before_its_start(tmp_path, jump, seconds):
    manifest = RunManifest(run_id="nip-1", name="nip", started=BootTime.now())
    folder = RunFolder.create(tmp_path, manifest)
    jump(seconds)
    folder.set_status("completed")
    assert 0 <= folder.manifest.finished - folder.manifest.created < 60
    assert 0 <= view_run(folder).seconds < 60
    folder.update(started=None)  # of an earlier release
    folder.set_status("completed")
    assert folder.manifest.finished >= folder.manifest.created


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_jump_stalls_no_stage_and_hides_no_stall(tmp_path, jump, seconds):
    folder = RunFolder.create(tmp_path, RunManifest(run_id="nip-1", name="nip"))
    live, lock = LiveFile(folder.path), RunLock(folder.path)
    with live.stage(STAGE):
        jump(seconds)
        assert stalls_of(read_live(folder.path), [], 600.0) == []
        time.sleep(0.02)
        assert len(stalls_of(read_live(folder.path), [], 0.01)) == 1
        (stage,) = [each for each in view_run(folder).stages if each.state != "cached"]
        assert 0 <= stage.seconds < 60
    lock.release()


def test_a_stall_on_another_machine_is_measured_from_the_time_of_writing(tmp_path):
    live = LiveFile(tmp_path)
    with live.stage(STAGE):
        content = json.loads((tmp_path / LIVE_FILE).read_text())
        content |= {"boot": "another", "clock": 5000.0, "time": time.time() - 100}
        content["stages"][0]["sign"] = 4000.0
        (stall,) = stalls_of(content, [], 600.0)
        assert stall.seconds == pytest.approx(1100, abs=10)
