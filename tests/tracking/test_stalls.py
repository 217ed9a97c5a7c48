"""Stages without signs of life: reports of stalls, and calls that count as signs."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.tracking.boot_clock import boot_seconds
from ratchet.tracking.live_file import (
    STALL_SECONDS,
    LiveFile,
    RunningStage,
    StallMonitor,
    find_stalls,
    read_live,
    stalls_of,
    usual_seconds,
)
from ratchet.tracking.logs import log_context
from ratchet.tracking.manifest import RunManifest, StageRecord
from ratchet.tracking.observers import RunObserver
from ratchet.tracking.run_events import RunEvent
from ratchet.tracking.run_folder import RunFolder


def record(stage: str, iteration: int, seconds: float) -> StageRecord:
    return StageRecord(stage=stage, iteration=iteration, key="a" * 64, hit=False, seconds=seconds)


def under_way(stage: str, sign: float) -> RunningStage:
    return RunningStage(arm="main", stage=stage, iteration=3, since=0.0, sign=sign)


def stage(name: str = "train", arm: str = "main") -> SimpleNamespace:
    return SimpleNamespace(arm=arm, name=name, iteration=3)


def test_a_stage_is_stalled_after_five_times_its_usual_duration() -> None:
    records = [record("train", i, seconds) for i, seconds in enumerate((100.0, 300.0, 900.0))]
    usual = usual_seconds([*records, record("test", 3, 2.0)])
    assert usual == {"train": 300.0, "test": 2.0}

    def stalled(name: str, silent: float, limit: float | None = None) -> bool:
        return bool(find_stalls([under_way(name, 0.0)], usual, limit, now=silent))

    assert not stalled("train", 1500.0)
    assert stalled("train", 1501.0)
    for name in ("test", "never seen"):
        assert not stalled(name, STALL_SECONDS)
        assert stalled(name, STALL_SECONDS + 1)
    assert stalled("train", 31.0, limit=30.0)
    (stall,) = find_stalls([under_way("train", 0.0)], usual, 30.0, now=90.0)
    assert str(stall) == (
        "main train 3 has given no sign of life for 90 s; such a stage takes 300.0 s"
    )


def test_progress_of_a_loop_is_a_sign_of_its_stage(tmp_path: Path) -> None:
    live = LiveFile(tmp_path)
    with live.stage(stage()), live.stage(stage(arm="other")):

        def silent() -> list[str]:
            return [stall.arm for stall in find_stalls(live.under_way(), {}, 0.05)]

        time.sleep(0.06)
        assert silent() == ["main", "other"]
        with log_context(arm="other", stage="train", iteration=3):
            live.advance(1)
        assert silent() == ["main"]
        live.describe("whoever this is")
        assert silent() == []


def test_each_stall_is_reported_once_until_the_stage_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = boot_seconds()
    here: list[RunningStage] = []
    told: list[float] = []
    asked = itertools.count()

    def usual() -> dict[str, float]:
        next(asked)
        return {}

    watch = StallMonitor(lambda: here, usual, 100.0, lambda stall: told.append(stall.seconds))
    caplog.set_level("INFO", "ratchet")
    watch.look()
    here.append(under_way("train", now))
    watch.look()
    assert next(asked) == 0, "usual durations are not read while stages give signs"
    for sign, number in ((now - 101, 1), (now - 101, 1), (now, 1), (now - 150, 2)):
        here[0]["sign"] = sign
        watch.look()
        assert len(told) == number
    assert caplog.messages == ["main train 3 continues"]
    watch.close()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    settings = {"stall_seconds": 0.2}
    manifest = RunManifest(run_id="nip-1", name="nip", arms={"main": {}}, settings=settings)
    return RunFolder.create(tmp_path, manifest)


def test_a_stalled_stage_is_reported_by_the_run_and_its_folder(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.record_stages([record("train", 2, 0.01)])
    live = LiveFile(folder.path)
    heard: list[RunEvent] = []

    def fails(_: Any) -> None:
        raise RuntimeError("nobody listens")

    observer = RunObserver(folder, live, 0.2, [fails, heard.append])
    with observer.told(), observer.under_way(stage()):
        end = time.time() + 5
        while not any(each.kind == "stage.stalled" for each in heard) and time.time() < end:
            time.sleep(0.01)
        (stall,) = stalls_of(read_live(folder.path), folder.manifest.stages, 0.2)
        folder.set_status("completed")
    kinds = ["run.started", "stage.started", "stage.stalled", "run.completed"]
    assert [each.kind for each in heard] == kinds
    assert (heard[2].arm, heard[2].stage, heard[2].iteration) == ("main", "train", 3)
    assert heard[2].seconds is not None
    assert heard[2].seconds > 0.2
    assert stall.name == "train"
    (event,) = folder.read_events()
    assert event["kind"] == "stalled"
    assert "main train 3 has given no sign of life" in event["message"]
    assert "`ratchet cancel nip-1`" in caplog.text
    assert "nobody listens" in caplog.text, "the run must continue"
