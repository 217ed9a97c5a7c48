"""``ratchet watch``: live view of a run in the terminal; also for remote and finished runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.runs import DEFAULT_RUNS, RunName, RunsFolder
from flows.process.messages import console, print_json_line, print_plain, prints_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flows.runs.run_view import RunView, StageView

_MAX_STAGES = 12
_EXIT_FAILED = 1


def watch(
    run: RunName,
    runs: RunsFolder = DEFAULT_RUNS,
    once: Annotated[bool, typer.Option("--once", help="Show the current status and exit.")] = False,
) -> None:
    """Watch a run until it ends: arms, stages, metrics and cost.

    With --json, write a line for every change.
    """
    from itertools import islice

    from flows.runs.run_view import watch_run
    from ratchet.tracking.run_folder import find_run

    views: Iterable[RunView] = watch_run(find_run(runs, run))
    if once:
        views = islice(views, 1)
    last = _show(views)
    if last is not None and last.status not in ("completed", "running"):
        raise typer.Exit(_EXIT_FAILED)


def _show(views: Iterable[RunView]) -> RunView | None:
    """Show views live on a terminal, otherwise as lines or JSON; return the last."""
    if prints_json():
        return _as_json(views)
    screen = console()
    if not screen.is_terminal:
        return _as_lines(views)
    from rich.live import Live

    view = None
    with Live(console=screen, refresh_per_second=4) as live:
        for view in views:
            live.update(draw(view))
    return view


def _as_json(views: Iterable[RunView]) -> RunView | None:
    view, before = None, None
    for view in views:
        stages = [(stage.arm, stage.stage, stage.iteration, stage.state) for stage in view.stages]
        status = (view.status, stages, view.doing, view.done, view.billed)
        if status != before:
            print_json_line(asdict(view))
        before = status
    return view


def _as_lines(views: Iterable[RunView]) -> RunView | None:
    """Write a line for each stage that starts or ends, and one at the end."""
    view, written = None, set()
    for view in views:
        for stage in view.stages:
            status = (stage.arm, stage.stage, stage.iteration, stage.state)
            if status not in written:
                written.add(status)
                print_plain("  ".join(_row(stage)))
    if view is not None:
        print_plain(_heading(view))
    return view


def draw(view: RunView) -> RenderableType:
    """Render a view: a heading, arms, the latest stages, current activity, cost, events."""
    from rich.console import Group
    from rich.text import Text

    from flows.process.progress import format_seconds
    from ratchet.reports.display_table import DisplayTable

    arms = [
        (
            arm.name,
            f"{arm.iterations}" + (f" of {arm.total}" if arm.total else ""),
            _numbers(arm.metrics),
        )
        for arm in view.arms
    ]
    num_hidden = max(len(view.stages) - _MAX_STAGES, 0)
    title = f"{num_hidden} earlier stages not shown" if num_hidden else ""
    stages = [_row(stage) for stage in view.stages[num_hidden:]]
    parts: list[RenderableType] = [
        Text(_heading(view), style="bold"),
        DisplayTable("", ("arm", "iterations", "latest"), arms),
        DisplayTable(title, ("arm", "stage", "iteration", "state", "time"), stages),
    ]
    if view.doing and not view.has_ended:
        count = f"  {view.done}/{view.expected}" if view.expected else ""
        parts.append(Text(f"{view.doing}{count}  {_numbers(view.metrics)}", style="cyan"))
    if view.awaits_jobs:
        longest = max(s.seconds for s in view.stages if s.state in ("under way", "stalled"))
        parts.append(Text(f"Waiting for fine-tune jobs for {format_seconds(longest)}"))
    parts += [Text(f"· {event}", style="yellow") for event in view.events]
    return Group(*parts)


def _row(stage: StageView) -> tuple[str, ...]:
    from flows.process.progress import format_seconds

    seconds = format_seconds(stage.seconds) if stage.seconds >= 10 else f"{stage.seconds:.1f} s"
    return stage.arm, stage.stage, str(stage.iteration), stage.state, seconds


def _numbers(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3g}" for name, value in metrics.items())


def _heading(view: RunView) -> str:
    from flows.process.progress import format_seconds

    parts = [f"Run {view.run_id}: {view.status}", format_seconds(view.seconds)]
    if view.billed is not None:
        budget = f" of {view.budget:,.2f}" if view.budget is not None else ""
        parts.append(f"billed {view.billed}{budget}")
    if view.has_ended and view.error:
        parts.append(view.error)
    return "  ".join(parts)
