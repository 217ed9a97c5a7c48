"""Progress is one bar on a terminal and plain lines elsewhere."""

from __future__ import annotations

import io

import pytest

from flows.cli.progress import (
    Bar,
    PlainLines,
    format_seconds,
    make_bar,
    metrics_that_matter,
    shown_progress,
)
from trainers.progress import IterationContext


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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
    assert len(lines) < 10, "not a line for each iteration"
    assert lines[-1] == "Training 10/40  0.5 it/s  1 min 0 s left  accuracy 0.5"


def test_the_whole_is_counted_when_the_first_loop_begins() -> None:
    clock, lines, counted = Clock(), [], []

    def count() -> int:
        counted.append(clock.now)
        return 40

    reporter = PlainLines(count, write=lines.append, seconds=5, clock=clock)
    assert counted == []
    for _ in range(2):
        with IterationContext(10, reporter) as context:
            clock.now += 2.0
            context.step(10)
    reporter.close()
    assert counted == [100.0]
    assert lines[-1].startswith("Working 20/40")


def test_what_came_before_the_first_step_spoils_no_estimate() -> None:
    """Servers start, models are made: an hour for the first step would promise days."""
    clock, lines = Clock(), []
    reporter = PlainLines(100, write=lines.append, seconds=5, clock=clock)
    with IterationContext(100, reporter) as context:
        clock.now += 3600
        context.step()
        clock.now += 5
        context.step(10)
    assert lines == ["Working 1/100", "Working 11/100  2 it/s  44 s left"]


def test_nothing_is_said_where_nothing_was_done() -> None:
    lines = []
    PlainLines(write=lines.append).close()
    assert lines == []


def test_plain_lines_count_on_over_several_loops() -> None:
    clock, lines = Clock(), []
    reporter = PlainLines(write=lines.append, clock=clock)
    for _ in range(2):
        with IterationContext(3, reporter) as context:
            clock.now += 1
            context.step(3)
    reporter.close()
    reporter.close()
    assert len(lines) == 1, "neither a line for each loop nor the same twice"
    assert lines[-1].startswith("Working 6/6")


def test_the_bar_draws_everything_on_a_terminal() -> None:
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    columns = TextColumn("{task.description} {task.completed}/{task.total} {task.fields[metrics]}")
    with (
        Progress(columns, console=console) as progress,
        IterationContext(4, Bar(progress, total=8)) as context,
    ):
        context.set_description("Training")
        context.set_postfix(accuracy=0.625)
        context.step(4)
    assert "Training 4/8 accuracy 0.625" in screen.getvalue()


def test_accuracies_come_first_and_noise_is_left_out() -> None:
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


def test_the_bar_fits_into_eighty_columns() -> None:
    from rich.console import Console

    screen = io.StringIO()
    progress = make_bar(Console(file=screen, force_terminal=True, width=80))
    with progress, IterationContext(2000, Bar(progress, total=2000)) as context:
        context.set_description("Pretraining verifier")
        context.set_postfix({"verifier.accuracy": 0.612, "prover.mean_episode_reward": 0.25})
        context.step(321)
        progress.refresh()
    lines = screen.getvalue()
    assert "Pretraining verifier" in lines
    assert "321/2000" in lines
    assert "accuracy 0.612" in lines


def test_reporters_reach_the_loops_inside(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress("plain", total=2), IterationContext(2) as context:
        context.step(2)
    assert "2/2" in capsys.readouterr().out
    with shown_progress("none"), IterationContext(2) as context:
        context.step(2)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_times_are_read_by_people(seconds: float, text: str) -> None:
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
