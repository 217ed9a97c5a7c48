"""Progress of a trainer's loops, passed to a reporter: a bar, plain lines, or none.

Callers set the reporter (:func:`progress_reporter`); trainers do not depend on a terminal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from ratchet.tracking.stage_kinds import StageKind


class ProgressReporter(Protocol):
    """Displays progress."""

    def start(self, total: int) -> None:
        """Start a loop of ``total`` iterations."""

    def describe(self, description: str) -> None:
        """Show a description of the loop."""

    def advance(self, steps: int) -> None:
        """Count finished iterations."""

    def show(self, metrics: Mapping[str, float]) -> None:
        """Show the latest metrics."""

    def finish(self) -> None:
        """End the loop, finished or not."""


_REPORTER: ContextVar[ProgressReporter | None] = ContextVar("progress_reporter", default=None)


@contextmanager
def progress_reporter(reporter: ProgressReporter) -> Iterator[None]:
    """Send the progress of every loop that runs inside to ``reporter``."""
    token = _REPORTER.set(reporter)
    try:
        yield
    finally:
        _REPORTER.reset(token)


@contextmanager
def tee_progress(reporter: ProgressReporter) -> Iterator[None]:
    """Send the progress of loops that run inside to ``reporter`` and to the current reporter."""
    known = _REPORTER.get()
    with progress_reporter(reporter if known is None else _TeeReporter(known, reporter)):
        yield


class _TeeReporter:
    """Forwards all calls to several reporters."""

    def __init__(self, *reporters: ProgressReporter) -> None:
        self._reporters = reporters

    def start(self, total: int) -> None:
        for reporter in self._reporters:
            reporter.start(total)

    def describe(self, description: str) -> None:
        for reporter in self._reporters:
            reporter.describe(description)

    def advance(self, steps: int) -> None:
        for reporter in self._reporters:
            reporter.advance(steps)

    def show(self, metrics: Mapping[str, float]) -> None:
        for reporter in self._reporters:
            reporter.show(metrics)

    def finish(self) -> None:
        for reporter in self._reporters:
            reporter.finish()


_PATH: ContextVar[tuple[str, ...]] = ContextVar("progress_path", default=())


@contextmanager
def progress_path(*words: str) -> Iterator[None]:
    """Prefix descriptions inside with words such as the arm's name."""
    token = _PATH.set((*_PATH.get(), *words))
    try:
        yield
    finally:
        _PATH.reset(token)


_NO_STAGE = StageKind("")
_STAGE: ContextVar[StageKind] = ContextVar("progress_stage", default=_NO_STAGE)


@contextmanager
def progress_stage(kind: StageKind) -> Iterator[None]:
    """Set the kind of stage of loops that run inside."""
    token = _STAGE.set(kind)
    try:
        yield
    finally:
        _STAGE.reset(token)


def current_stage() -> StageKind:
    """Return the kind of stage of the running loop; without a name outside stages."""
    return _STAGE.get()


def describe(description: str) -> None:
    """Describe work outside loops to the current reporter."""
    reporter = _REPORTER.get()
    if reporter is not None:
        reporter.describe(_placed(description))


def show(metrics: Mapping[str, float]) -> None:
    """Show metrics of work outside loops to the current reporter."""
    reporter = _REPORTER.get()
    if reporter is not None:
        reporter.show(metrics)


def has_reporter() -> bool:
    """Return whether a progress reporter is set."""
    return _REPORTER.get() is not None


def _placed(description: str) -> str:
    return " · ".join([*_PATH.get(), description])


class IterationContext:
    """Progress of one running loop.

    The default reporter is the one set by :func:`progress_reporter`, if any.
    """

    def __init__(self, total: int, reporter: ProgressReporter | None = None) -> None:
        self.total = total
        self.completed = 0
        self.description = ""
        self._reporter = reporter if reporter is not None else _REPORTER.get()

    @property
    def num_iterations(self) -> int:
        """The number of iterations, ``total``."""
        return self.total

    def __enter__(self) -> IterationContext:
        if self._reporter is not None:
            self._reporter.start(self.total)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._reporter is not None:
            self._reporter.finish()

    def set_description(self, description: str) -> None:
        """Describe the loop, e.g. ``"Training"``."""
        self.description = description
        if self._reporter is not None:
            self._reporter.describe(_placed(description))

    def set_postfix(self, metrics: Mapping[str, float] | None = None, **more: float) -> None:
        """Show metrics next to the progress."""
        if self._reporter is not None:
            self._reporter.show({**(metrics or {}), **more})

    def step(self, steps: int = 1) -> None:
        """Count ``steps`` finished iterations."""
        self.completed += steps
        if self._reporter is not None:
            self._reporter.advance(steps)


def report_iterations(
    description: str,
    iterations: Sequence[int],
    run: Callable[[int], dict[str, float] | None],
    *,
    unit: str = "iteration",
    total: int | None = None,
) -> list[dict[str, float]]:
    """Run iterations sequentially, reporting each; return their metrics.

    ``run`` takes an iteration's number and returns its metrics, or None if it was skipped.
    ``unit`` names an iteration; ``total`` is the full number if these are a part.
    """
    end = len(iterations) if total is None else total
    metrics: list[dict[str, float]] = []
    with IterationContext(len(iterations)) as context:
        for iteration in iterations:
            context.set_description(f"{description}, {unit} {iteration + 1} of {end}")
            iteration_metrics = run(iteration)
            if iteration_metrics is not None:
                metrics.append(iteration_metrics)
                context.set_postfix(iteration_metrics)
            context.step()
    return metrics


_Result = TypeVar("_Result")
_TOTAL_ATTRIBUTE = "__progress_total__"


def attach_progress_bar(
    num_iterations: Callable[[Any], int],
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Return a decorator that passes an :class:`IterationContext` to a method.

    Callers omit the context, which is passed as ``iteration_context``. ``num_iterations``
    maps the trainer to its number of iterations, which the decorator declares.
    """

    def decorate(method: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(method)
        def run(self: object, *args: object, **kwargs: object) -> _Result:
            has_context = isinstance(kwargs.get("iteration_context"), IterationContext)
            if has_context or any(isinstance(argument, IterationContext) for argument in args):
                return method(self, *args, **kwargs)
            files = getattr(self, "checkpoint_files", None)  # a trainer's; others have none
            scope = nullcontext() if files is None else files.resumable(method.__name__)
            with IterationContext(num_iterations(self)) as context, scope:
                return method(self, *args, iteration_context=context, **kwargs)

        setattr(run, _TOTAL_ATTRIBUTE, num_iterations)
        return run

    return decorate


def declared_iterations(trainer: object) -> int:
    """Return the sum of the iterations that methods declared with :func:`attach_progress_bar`."""
    total = 0
    for name in dir(type(trainer)):
        num_iterations = getattr(getattr(type(trainer), name, None), _TOTAL_ATTRIBUTE, None)
        if num_iterations is not None:
            total += num_iterations(trainer)
    return total
