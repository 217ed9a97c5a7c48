"""A progress bar for a complete run, or plain lines without a terminal.

Both are reporters of :mod:`trainers.progress`; trainers and tasks do not depend on them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

from flows.process.messages import console, prints_json
from ratchet.tracking.logs import writes_json
from ratchet.tracking.metrics import metrics_that_matter
from trainers.progress import current_stage, has_reporter, progress_reporter

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from trainers.progress import ProgressReporter

ProgressStyle: TypeAlias = Literal["auto", "bar", "plain", "none"]
Total: TypeAlias = Callable[[], Mapping[str, int]] | int | None
"""Steps of the run: a number, or by kind of stage; None if unknown. A callable is evaluated at the
start of the first loop: a fully cached run has no loops."""

_PLAIN_SECONDS = 10.0
_BAR_WIDTH, _MIN_BAR_WIDTH, _COLUMNS_WIDTH = 40, 6, 32


def _as_text(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3g}" for name, value in metrics.items())


class Pace:
    """Counts steps of stages, and estimates the remaining time from the rate of each kind.

    Time between two steps counts for the later one's kind. The first step of each kind, which
    includes set-up, does not enter its rate.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._to_do: Counter[str] = Counter()
        self._started: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._timed: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def plan(self, to_do: Mapping[str, int]) -> None:
        """Set the steps of the entire run, by kind."""
        self._to_do = Counter(to_do)

    def start(self, kind: str, steps: int) -> None:
        """Start a loop; without a plan, the loops so far are the total."""
        self._started[kind] = max(self._started[kind], self._done[kind]) + steps

    def advance(self, kind: str, steps: int) -> None:
        """Count finished steps."""
        now = self._clock()
        if self._done[kind]:
            self._timed[kind] += steps
            self._seconds[kind] = self._seconds.get(kind, 0.0) + now - self._last
        self._done[kind] += steps
        self._last = now

    @property
    def done(self) -> int:
        """All finished steps."""
        return self._done.total()

    @property
    def total(self) -> int:
        """All steps of the run, finished ones included."""
        return sum(map(self._total, self._kinds))

    def count(self, kind: str) -> str:
        """Return the finished and all steps of a kind, e.g. ``5/40``; empty without steps."""
        total = self._total(kind)
        return f"{self._done[kind]}/{total}" if total else ""

    def rate(self, kind: str) -> float | None:
        """Return a kind's steps per second; None before its second step."""
        seconds = self._seconds.get(kind)
        return None if seconds is None else self._timed[kind] / max(seconds, 1e-9)

    def remaining(self) -> tuple[float, bool] | None:
        """Return the remaining seconds, and whether this covers all kinds to do.

        None while no kind to do has a rate.
        """
        left = {kind: self._total(kind) - self._done[kind] for kind in self._kinds}
        left = {kind: steps for kind, steps in left.items() if steps}
        rates = {kind: rate for kind in self._kinds if (rate := self.rate(kind)) is not None}
        known = left.keys() & rates.keys()
        if not (known if left else rates):
            return None
        return sum(left[kind] / rates[kind] for kind in known), len(known) == len(left)

    @property
    def _kinds(self) -> set[str]:
        return {*self._to_do, *self._started, *self._done}

    def _total(self, kind: str) -> int:
        return max(self._to_do[kind] or self._started[kind], self._done[kind])


class _RunPace:
    """Receives the steps of a run's loops; ``total`` counts the entire run."""

    def __init__(self, total: Total, clock: Callable[[], float]) -> None:
        self.pace = Pace(clock)
        self._count = total if callable(total) else None
        if isinstance(total, int):
            self.pace.plan({"": total})

    def start(self, total: int) -> None:
        """Start a loop."""
        if self._count is not None:
            self.pace.plan(self._count())
            self._count = None
        self.pace.start(current_stage().name, total)

    def advance(self, steps: int) -> None:
        """Count finished iterations."""
        self.pace.advance(current_stage().name, steps)

    def finish(self) -> None:
        """End a loop; further loops may follow."""


def _print_line(text: str) -> None:
    """Print a line of progress, which is no part of a JSON document."""
    console(stderr=prints_json()).print(text, markup=False)


class PlainLines(_RunPace):
    """Write a line every few ``seconds`` and one at the end."""

    def __init__(
        self,
        total: Total = None,
        *,
        write: Callable[[str], None] = _print_line,
        seconds: float = _PLAIN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(total, clock)
        self._write = write
        self._seconds = seconds
        self._clock = clock
        self._last = clock()
        self._stage = current_stage()
        self._written: tuple[int, str] | None = None
        self.description = "Working"
        self._metrics: Mapping[str, float] = {}

    def describe(self, description: str) -> None:
        """Set the current activity; also write a line for long activities without iterations."""
        self.description = description
        self._stage = current_stage()
        if self._clock() - self._last >= self._seconds:
            self._write_status()

    def advance(self, steps: int) -> None:
        """Count finished iterations."""
        super().advance(steps)
        self._stage = current_stage()
        if self._clock() - self._last >= self._seconds:
            self._write_status()

    def show(self, metrics: Mapping[str, float]) -> None:
        """Set the metrics of the next line."""
        chosen = metrics_that_matter(metrics)
        if chosen or not metrics:
            self._metrics = chosen

    def close(self) -> None:
        """Write the final status unless it is already written."""
        if self.pace.done and (self._written is None or self._written[0] != self.pace.done):
            self._write_status()

    def _write_status(self) -> None:
        """Write the status if it has changed."""
        self._last = self._clock()
        status = self.pace.done, self.description
        if status == self._written:
            return
        self._written = status
        stage, unit = self._stage.name, self._stage.unit
        count, rate = self.pace.count(stage), self.pace.rate(stage)
        parts = [" ".join(filter(None, [self.description, count, unit]))]
        if rate is not None:
            parts.append(f"{rate:.2g} {unit or 'it'}/s")
        if remaining := self.pace.remaining():
            seconds, is_complete = remaining
            bound = "" if is_complete else "at least "
            parts.append(f"{bound}{format_seconds(seconds)} left")
        self._write("  ".join(filter(None, [*parts, _as_text(self._metrics)])))


class Bar(_RunPace):
    """One bar with rate, remaining time and metrics."""

    def __init__(self, progress: Progress, total: Total = None) -> None:
        super().__init__(total, time.monotonic)
        self._progress = progress
        self._task: TaskID = progress.add_task("Starting", total=None, metrics="", pace="")

    def start(self, total: int) -> None:
        """Start a loop."""
        super().start(total)
        self._update()

    def describe(self, description: str) -> None:
        """Set the current activity."""
        self._progress.update(self._task, description=description)

    def advance(self, steps: int) -> None:
        """Count finished iterations."""
        super().advance(steps)
        self._update()

    def show(self, metrics: Mapping[str, float]) -> None:
        """Show the headline metrics."""
        chosen = metrics_that_matter(metrics)
        if chosen or not metrics:
            self._progress.update(self._task, metrics=_as_text(chosen))

    def _update(self) -> None:
        stage, pace = current_stage().name, self.pace
        rate = pace.rate(stage)
        parts = [pace.count(stage)]
        if rate is not None:
            parts.append(f"{rate:.{0 if rate >= 10 else 2}f}/s")
        if remaining := pace.remaining():
            seconds, is_complete = remaining
            parts.append(f"{'' if is_complete else '≥ '}{_as_clock(seconds)}")
        pace_text = " ".join(filter(None, parts))
        self._progress.update(self._task, completed=pace.done, total=pace.total, pace=pace_text)


def _as_clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def format_seconds(seconds: float) -> str:
    """Format a time as ``42 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


@contextmanager
def shown_progress(how: ProgressStyle, total: Total = None) -> Iterator[ProgressReporter | None]:
    """Show the progress of all loops in the block unless a reporter is already active.

    ``how`` is ``settings.progress``: "auto" shows a bar on a terminal, no progress with JSON logs,
    and plain lines otherwise (also in notebooks). ``total``: iterations of the entire run.
    """
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
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.text import Text

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
        TextColumn("{task.fields[pace]}"),
        console=screen,
    )
