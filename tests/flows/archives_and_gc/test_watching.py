"""``ratchet watch`` follows a run through its folder until the run ends."""

from __future__ import annotations

import io
import json
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flows.cli.main import app
from flows.cli.watch import draw
from flows.process.checks.base import Installation
from flows.process.checks.runs import stalled_stages
from flows.runs.run_view import RunView, view_run, watch_run
from ratchet.tracking.live_file import LIVE_FILE, LiveFile, read_live
from ratchet.tracking.manifest import RunManifest, StageRecord
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_lock import RunLock
from trainers.progress import IterationContext, describe, progress_reporter, tee_progress


def call(stage: str = "train", iteration: int = 4, arm: str = "main") -> Any:
    return SimpleNamespace(arm=arm, name=stage, iteration=iteration)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    parameters = {"rl": {"num_iterations": 8}}
    settings = {"budget": 5.0}
    manifest = RunManifest(
        run_id="nip-1", name="nip", arms={"main": parameters, "solo": parameters}, settings=settings
    )
    return RunFolder.create(tmp_path / "runs", manifest)


def ratchet(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def shown(view: RunView) -> str:
    text = io.StringIO()
    Console(file=text, width=120).print(draw(view))
    return text.getvalue()


def test_a_view_contains_arms_stages_metrics_costs_and_awaited_jobs(run: RunFolder) -> None:
    presence, live = RunLock(run.path), LiveFile(run.path)
    made = StageRecord(stage="train", iteration=4, key="a" * 64, hit=False, seconds=12.0)
    found = StageRecord(arm="solo", stage="build_scenario", key="b" * 64, hit=True)
    run.record_stages([made, found])
    run.append_metrics("train", 4, {"verifier.accuracy": 0.75})
    run.usage_path.write_text(
        json.dumps({"billed_at_least": 1.5, "billed_at_most": 1.5, "billed_unknown": 0, "rows": []})
    )
    run.log_event("waiting", "waits for a stage that process 7 makes.")
    with live.stage(call("await_fine_tune_jobs", 3)), tee_progress(live):
        describe("Waiting for fine-tuning job 1 of 2, prover (running)")
        live._written = float("-inf")
        describe("Waiting for fine-tuning job 1 of 2, prover (running)")
        view = view_run(run)
        text = shown(view)
    assert [(arm.iterations, arm.total) for arm in view.arms] == [(4, 8), (0, 8)]
    states = [(s.stage, s.iteration, s.state) for s in view.stages]
    assert states == [
        ("train", 4, "computed"),
        ("build_scenario", 0, "cached"),
        ("await_fine_tune_jobs", 3, "under way"),
    ]
    assert view.awaits_jobs
    for words in (
        *("Run nip-1: running", "billed 1.50 of 5.00", "4 of 8", "accuracy 0.75", "12 s"),
        *("job 1 of 2, prover", "Waiting for fine-tune jobs for 0 s", "process 7 makes"),
    ):
        assert words in text, text
    live.close()
    presence.release()
    assert not (run.path / LIVE_FILE).exists()
    assert view_run(run).status == "interrupted"


def test_a_stage_without_progress_is_stalled_and_reported_by_doctor(run: RunFolder) -> None:
    run.update(settings={**run.manifest.settings, "stall_seconds": 0.05})
    presence, live = RunLock(run.path), LiveFile(run.path)
    places = Installation(run.path.parent / "home", run.path.parent)
    with live.stage(call()):
        assert [s.state for s in view_run(run).stages] == ["under way"]
        assert list(stalled_stages(places)) == []
        time.sleep(0.06)
        assert [s.state for s in view_run(run).stages] == ["stalled"]
        (check,) = stalled_stages(places)
        assert "stalled" in shown(view_run(run))
    assert check.subject == "run nip-1"
    for command in ("`ratchet watch nip-1`", "`ratchet cancel nip-1`", "`ratchet resume nip-1`"):
        assert command in check.details
    live.close()
    presence.release()


def test_stages_are_written_immediately_and_loops_rarely(run: RunFolder) -> None:
    now = [0.0]
    live = LiveFile(run.path, clock=lambda: now[0])
    heard: list[str] = []

    class Bar:
        def start(self, total: int) -> None:
            heard.append(f"start {total}")

        def describe(self, description: str) -> None:
            heard.append(description)

        def advance(self, steps: int) -> None:
            heard.append(f"advance {steps}")

        def show(self, metrics: Any) -> None:
            heard.append("show")

        def finish(self) -> None:
            heard.append("finish")

    def told() -> Any:
        found = read_live(run.path)
        assert found is not None
        return found

    with progress_reporter(Bar()), tee_progress(live), live.stage(call()):
        assert [stage["iteration"] for stage in told()["stages"]] == [4]
        with IterationContext(10) as context:
            context.set_description("Training")
            context.step(3)
            assert told()["done"] == 0, "half a second has not passed"
            now[0] = 1.0
            context.step(2)
    assert (told()["done"], told()["expected"], told()["doing"]) == (5, 10, "Training")
    assert heard == ["start 10", "Training", "advance 3", "advance 2", "finish"]
    with live.stage(call("test")):
        assert [stage["stage"] for stage in told()["stages"]] == ["test"]
    assert told()["stages"] == []
    LiveFile(run.path)
    assert read_live(run.path) is None, "left by a killed process"


def test_watching_waits_for_a_run_to_start_and_ends_with_it(run: RunFolder) -> None:
    steps: list[Any] = []
    presence: list[RunLock] = []

    def sleep(_: float) -> None:
        steps.append(None)
        if len(steps) == 2:
            presence.append(RunLock(run.path))
        if len(steps) == 4:
            run.set_status("completed")
            presence[0].release()

    statuses = [view.status for view in watch_run(run, sleep=sleep)]
    assert statuses == ["interrupted", "interrupted", "running", "running", "completed"]
    run.set_status("running")
    gone = [view.status for view in watch_run(run, sleep=lambda _: None, seconds=1, patience=2)]
    assert gone == ["interrupted"] * 3, "no process runs it"


def test_the_command_follows_a_run_in_a_different_process(run: RunFolder) -> None:
    presence = RunLock(run.path)

    def work() -> None:
        live = LiveFile(run.path)
        with live.stage(call()):
            run.log_event("note", "half way")
        run.record_stages([StageRecord(stage="train", iteration=4, key="a" * 64, hit=False)])
        run.set_status("completed")
        live.close()
        presence.release()

    timer = threading.Timer(0.3, work)
    timer.start()
    plain = ratchet("watch", "nip")
    timer.join()
    assert plain.exit_code == 0, plain.output
    assert "main  train  4  computed" in plain.output
    assert "Run nip-1: completed" in plain.output
    lines = ratchet("watch", "nip-1", "--json").stdout.splitlines()
    (view,) = [json.loads(line) for line in lines]
    assert (view["status"], view["stages"][0]["state"]) == ("completed", "computed")


def test_nan_is_null_in_json(run: RunFolder) -> None:
    run.append_metrics("train", 4, {"verifier.accuracy": math.nan})
    (line,) = ratchet("watch", "nip-1", "--json", "--once").stdout.splitlines()
    arms = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["arms"]
    assert arms[0]["metrics"] == {"accuracy": None}


def test_a_failed_run_gives_exit_code_1(run: RunFolder) -> None:
    run.set_status("failed", "ValueError: no")
    done = ratchet("watch", "nip", "--once")
    assert done.exit_code == 1
    assert "failed" in done.output
    assert "ValueError: no" in done.output
    assert ratchet("watch", "other").exit_code != 0
