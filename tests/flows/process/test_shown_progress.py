"""Progress is one bar on a terminal and plain lines elsewhere."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest

from flows.process.messages import output_as_json
from flows.process.progress import (
    Bar,
    PlainLines,
    format_seconds,
    make_bar,
    shown_progress,
)
from ratchet.tracking.metrics import metrics_that_matter
from ratchet.tracking.stage_kinds import PRETRAIN, TRAIN, StageKind
from trainers.progress import (
    IterationContext,
    describe,
    has_reporter,
    progress_path,
    progress_reporter,
    progress_stage,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_are_no_part_of_a_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    lines = PlainLines(2, seconds=0)
    with output_as_json():
        lines.start(2)
        lines.advance(1)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["notes"] == []
    assert "1/2" in printed.err


def test_plain_lines_have_rate_time_left_and_metrics() -> None:
    clock, lines = Clock(), []
    reporter = PlainLines(40, write=lines.append, seconds=5, clock=clock)
    with IterationContext(10, reporter) as context:
        context.set_description("Training")
        for _ in range(10):
            clock.now += 2.0
            context.set_postfix({"accuracy": 0.5, "grad_norm": 3.0})
            context.step()
    reporter.close()
    assert len(lines) < 10, "expected fewer lines than iterations"
    assert lines[-1] == "Training 10/40  0.5 it/s  1 min 0 s left  accuracy 0.5"


def test_the_total_is_counted_when_the_first_loop_starts() -> None:
    clock, lines, counted = Clock(), [], []

    def count() -> dict[str, int]:
        counted.append(clock.now)
        return {"": 40}

    reporter = PlainLines(count, write=lines.append, seconds=5, clock=clock)
    assert counted == []
    for _ in range(2):
        with IterationContext(10, reporter) as context:
            clock.now += 2.0
            context.step(10)
    reporter.close()
    assert counted == [100.0]
    assert lines[-1].startswith("Working 20/40")


def test_time_before_the_first_step_does_not_enter_the_estimate() -> None:
    """Set-up can take an hour; counted as a step, it would give an estimate of days."""
    clock, lines = Clock(), []
    reporter = PlainLines(100, write=lines.append, seconds=5, clock=clock)
    with IterationContext(100, reporter) as context:
        clock.now += 3600
        context.step()
        clock.now += 5
        context.step(10)
    assert lines == ["Working 1/100", "Working 11/100  2 it/s  44 s left"]


def test_the_time_left_is_estimated_per_kind_of_stage() -> None:
    clock, lines = Clock(), []
    steps = {"pretrain": 100, "train": 20, "fit": 7}
    reporter = PlainLines(lambda: steps, write=lines.append, seconds=0, clock=clock)
    for kind, seconds, count in (
        (PRETRAIN, 1, 100),
        (TRAIN, 10, 5),
        (StageKind("fit", unit="steps"), 3, 2),
    ):
        with progress_stage(kind), IterationContext(count, reporter) as context:
            context.set_description(kind.name)
            for _ in range(count):
                clock.now += seconds
                context.step()
    assert "pretrain 100/100 epochs  1 epochs/s" in lines
    assert "train 5/20 iterations  0.1 iterations/s  at least 2 min 30 s left" in lines
    assert lines[-1] == "fit 2/7 steps  0.33 steps/s  2 min 45 s left"


def test_no_line_is_written_without_progress() -> None:
    lines = []
    PlainLines(write=lines.append).close()
    assert lines == []


def test_plain_lines_accumulate_over_several_loops() -> None:
    clock, lines = Clock(), []
    reporter = PlainLines(write=lines.append, clock=clock)
    for _ in range(2):
        with IterationContext(3, reporter) as context:
            clock.now += 1
            context.step(3)
    reporter.close()
    reporter.close()
    assert len(lines) == 1, "expected one line in total, without repetition"
    assert lines[-1].startswith("Working 6/6")


def test_the_bar_shows_description_steps_and_metrics() -> None:
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    columns = TextColumn("{task.description} {task.fields[pace]} {task.fields[metrics]}")
    with (
        Progress(columns, console=console) as progress,
        IterationContext(4, Bar(progress, total=8)) as context,
    ):
        context.set_description("Training")
        context.set_postfix(accuracy=0.625)
        context.step(4)
    assert "Training 4/8 accuracy 0.625" in screen.getvalue()


def test_accuracies_come_first_and_noise_is_omitted() -> None:
    metrics = {
        "verifier.loss_critic": 1.0,
        "grad_norm": 2.0,
        "prover.mean_step_reward": 0.1,
        "prover.mean_episode_reward": 0.5,
        "verifier.accuracy": 0.6,
    }
    assert metrics_that_matter(metrics) == {"accuracy": 0.6, "prover reward": 0.5}
    spread = {"verifier.std_accuracy": 0.5, "verifier.accuracy": 0.6}
    assert metrics_that_matter(spread) == {"accuracy": 0.6}
    assert metrics_that_matter({"loss": 1.0, "grad_norm": 2.0}) == {"loss": 1.0}


LONG = "Waiting for fine-tuning job 2 of 3, verifier (running, step 40 of 120)"


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize(
    ("place", "description"),
    [
        (["verifier_alone"], "Training, iteration 121 of 1000"),
        (["seed_2", "iteration 3 of 6"], LONG),
        (["main"], "Preparing the base model ratchet-tiny, which is made once for a home (42 s)"),
    ],
)
def test_no_text_is_truncated_in_narrow_windows(width: int, place: list[str], description: str):
    from rich.console import Console

    progress = make_bar(Console(file=io.StringIO(), force_terminal=True, width=width))
    with progress_path(*place), IterationContext(2000, Bar(progress, total=9900)) as context:
        context.set_description(description)
        context.set_postfix({"verifier.accuracy": 0.612, "prover.mean_episode_reward": 0.25})
        context.step(4321)
        drawn = io.StringIO()
        Console(file=drawn, width=width).print(progress.get_renderable())
    lines = drawn.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(line.split()) for line in lines)
    said = " · ".join([*place, description])
    assert f"{said} accuracy 0.612 prover reward 0.25" in text
    assert "4321/9900" in text
    assert "…" not in text
    assert "━━" in text


def test_the_bar_shows_no_total_before_the_first_loop() -> None:
    from rich.console import Console

    progress = make_bar(Console(file=io.StringIO(), force_terminal=True, width=80))
    with progress_reporter(Bar(progress, lambda: {"": 9900})):
        describe("Making the base model")
        drawn = io.StringIO()
        Console(file=drawn, width=80).print(progress.get_renderable())
    assert drawn.getvalue().splitlines()[0] == "Making the base model"
    assert "9900" not in drawn.getvalue()


def test_plain_lines_show_descriptions_before_the_first_loop() -> None:
    clock, lines = Clock(), []
    with progress_reporter(
        PlainLines(lambda: {"": 40}, write=lines.append, seconds=5, clock=clock)
    ):
        for second in range(12):
            clock.now += 1
            describe(f"Making the base model ({second} s)")
        with IterationContext(40) as context:
            context.set_description("Training")
            for _ in range(2):
                clock.now += 5
                context.step()
    assert lines == [
        "Making the base model (4 s)",
        "Making the base model (9 s)",
        "Training 1/40",
        "Training 2/40  0.2 it/s  3 min 10 s left",
    ]


def test_test_metrics_are_labelled_and_cleared_for_the_next_arm() -> None:
    tested = {"test_accuracy": 0.75, "test_prover.mean_episode_reward": 0.5}
    assert metrics_that_matter(tested) == {"test accuracy": 0.75, "test prover reward": 0.5}
    assert metrics_that_matter({"my_agent.train_accuracy": 1.0}) == {"my_agent train accuracy": 1.0}
    lines: list[str] = []
    clock = Clock()
    reporter = PlainLines(3, write=lines.append, seconds=5, clock=clock)
    for metrics in (tested, {"cost": 1.0}, {}):
        reporter.show(metrics)
        clock.now += 5
        reporter.advance(1)
    ends = ["test accuracy 0.75  test prover reward 0.5"] * 2 + ["0 s left"]
    assert [line.endswith(end) for line, end in zip(lines, ends, strict=True)] == [True] * 3


def test_an_active_reporter_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress("plain") as outer, shown_progress("plain") as inner:
        assert outer is not None
        assert inner is None
        describe("Training")


def test_runs_from_python_show_their_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.runs import run

    heard = []
    resolved = SimpleNamespace(
        settings=SimpleNamespace(progress="plain"), check_stored_stages=lambda: None
    )
    monkeypatch.setattr(run, "resolve", lambda *_, **__: resolved)
    monkeypatch.setattr(run, "check_experiment", lambda _: None)
    monkeypatch.setattr(run, "prepare_process", lambda _: None)
    monkeypatch.setattr(run, "_run", lambda *_, **__: heard.append(has_reporter()))
    run.run_experiment({})
    resolved.settings.progress = "none"
    run.run_experiment({})
    assert heard == [True, False]


def test_nested_loops_use_the_active_reporter(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress("plain", total=2), IterationContext(2) as context:
        context.step(2)
    assert "2/2" in capsys.readouterr().out
    with shown_progress("none"), IterationContext(2) as context:
        context.step(2)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_spreads_and_worst_cases_are_not_shown():
    metrics = {
        "verifier.accuracy": 0.5,
        "verifier.std_accuracy": 0.1,
        "verifier.mean_datapoint_accuracy": 0.4,
        "verifier.worst_datapoint_accuracy": 0.0,
        "prover.worst_episode_reward": -1.0,
        "prover.mean_episode_reward": 0.7,
    }
    assert metrics_that_matter(metrics) == {"accuracy": 0.5, "prover reward": 0.7}
