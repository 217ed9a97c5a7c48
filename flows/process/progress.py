"""A progress bar for a complete run, or plain lines without a terminal.

Both are reporters of :mod:`trainers.progress`; trainers and tasks do not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

from flows.process.messages import console, print_plain
from ratchet.tracking.logs import writes_json
from ratchet.tracking.metrics import metrics_that_matter

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from trainers.progress import ProgressReporter

ProgressStyle: TypeAlias = Literal["auto", "bar", "plain", "none"]
Total: TypeAlias = int | Callable[[], int | None] | None
"""Iterations of the run; None if unknown. A callable is evaluated at the start of the first loop: a
fully cached run has no loops."""

_PLAIN_SECONDS = 10.0
_BAR_WIDTH, _MIN_BAR_WIDTH, _COLUMNS_WIDTH = 40, 6, 32


def _as_text(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3g}" for name, value in metrics.items())


class PlainLines:
    """Write a line every few ``seconds`` and one at the end; ``total`` counts the entire run."""

    def __init__(
        self,
        total: Total = None,
        *,
        write: Callable[[str], None] = print_plain,
        seconds: float = _PLAIN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = total
        self._total = None if callable(total) else total
        self._write = write
        self._seconds = seconds
        self._clock = clock
        self._last = clock()
        self._first: tuple[int, float] | None = None
        self._done = 0
        self._written: tuple[int, str] | None = None
        self._expected = 0
        self.description = "Working"
        self._metrics: Mapping[str, float] = {}

    def start(self, total: int) -> None:
        """Start a loop."""
        if self._total is None and callable(self._count):
            self._total = self._count()
        self._expected = max(self._expected, self._done) + total

    def describe(self, description: str) -> None:
        """Set the current activity; also write a line for long activities without iterations."""
        self.description = description
        if self._clock() - self._last >= self._seconds:
            self._write_status()

    def advance(self, steps: int) -> None:
        """Count finished iterations."""
        self._done += steps
        if self._first is None:  # the rate excludes the start-up time
            self._first = self._done, self._clock()
        if self._clock() - self._last >= self._seconds:
            self._write_status()

    def show(self, metrics: Mapping[str, float]) -> None:
        """Set the metrics of the next line."""
        chosen = metrics_that_matter(metrics)
        if chosen or not metrics:
            self._metrics = chosen

    def finish(self) -> None:
        """End a loop; further loops may follow."""

    def close(self) -> None:
        """Write the final status unless it is already written."""
        if self._done and (self._written is None or self._written[0] != self._done):
            self._write_status()

    def _write_status(self) -> None:
        """Write the status if it has changed."""
        self._last = self._clock()
        status = self._done, self.description
        if status == self._written:
            return
        self._written = status
        total = max(self._total or self._expected, self._done)
        count = f" {self._done}/{total}" if total else ""
        parts = [f"{self.description}{count}", *self._pace(total)]
        self._write("  ".join([*parts, *filter(None, [_as_text(self._metrics)])]))

    def _pace(self, total: int) -> list[str]:
        """Return the rate and the remaining time, available after the first step."""
        if self._first is None or self._done == self._first[0]:
            return []
        done, start = self._first
        rate = (self._done - done) / max(self._last - start, 1e-9)
        return [f"{rate:.2g} it/s", f"{format_seconds((total - self._done) / rate)} left"]


class Bar:
    """One bar with rate, remaining time and metrics; ``total`` counts the entire run."""

    def __init__(self, progress: Progress, total: Total = None) -> None:
        self._progress = progress
        self._count = total
        self._total = None if callable(total) else total
        self._expected = 0
        self._done = 0
        self._task: TaskID = progress.add_task("Starting", total=self._total, metrics="")

    def start(self, total: int) -> None:
        """Start a loop."""
        if self._total is None and callable(self._count):
            self._total = self._count()
        self._expected = max(self._expected, self._done) + total
        self._progress.update(self._task, total=max(self._total or 0, self._expected))

    def describe(self, description: str) -> None:
        """Set the current activity."""
        self._progress.update(self._task, description=description)

    def advance(self, steps: int) -> None:
        """Count finished iterations."""
        self._done += steps
        self._progress.advance(self._task, steps)

    def show(self, metrics: Mapping[str, float]) -> None:
        """Show the headline metrics."""
        chosen = metrics_that_matter(metrics)
        if chosen or not metrics:
            self._progress.update(self._task, metrics=_as_text(chosen))

    def finish(self) -> None:
        """End a loop; the bar remains for the next one."""


def format_seconds(seconds: float) -> str:
    """Format a time as ``42 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def shown_progress(how: ProgressStyle, total: Total = None) -> Iterator[ProgressReporter | None]:
    """Show the progress of all loops in the block unless a reporter is already active.

    ``how`` is ``settings.progress``: "auto" shows a bar on a terminal, no progress with JSON logs,
    and plain lines otherwise (also in notebooks). ``total``: iterations of the entire run.
    """
    from trainers.progress import has_reporter, progress_reporter

    if how == "none" or has_reporter() or (how == "auto" and writes_json()):
        yield None
        return
    screen = console(stderr=True)
    if how == "plain" or (how == "auto" and not screen.is_terminal):
        lines = PlainLines(total)
        with progress_reporter(lines):
            yield lines
        lines.close()
        return
    with make_bar(screen) as progress:
        bar = Bar(progress, total)
        with progress_reporter(bar):
            yield bar


def make_bar(screen: Console) -> Progress:
    """Return the display of the bar.

    The first line has the activity and the metrics, wrapped if too long; below are bar, count, rate
    and remaining time. On narrow terminals only the bar shrinks.
    """
    from rich.console import RenderableType
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class RateColumn(ProgressColumn):
        """Iterations per second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            digits = 0 if speed and speed >= 10 else 2
            return Text(f"{speed:.{digits}f} it/s" if speed else "", style="cyan")

    class TwoLines(Progress):
        """Descriptions above their bars."""

        def get_renderables(self) -> Iterator[RenderableType]:
            for task in self.tasks:
                line = Text(task.description)
                if task.fields["metrics"]:
                    line.append(f"  {task.fields['metrics']}", style="green")
                yield line
                yield self.make_tasks_table([task])

    return TwoLines(
        BarColumn(bar_width=min(_BAR_WIDTH, max(_MIN_BAR_WIDTH, screen.width - _COLUMNS_WIDTH))),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(compact=True),
        console=screen,
    )
