"""Context of log lines (run, arm, stage, iteration), and logs as text or JSON lines.

Runs and stages enter their context with :func:`log_context`. It is a context variable, so lines of
all libraries within a stage carry it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

OUR_LOGGERS = ("deployments", "flows", "ratchet", "tasks", "trainers")
LOG_FILE = "log.jsonl"
"""File in a run's folder with its log lines from INFO."""
VARIABLE = "RATCHET_LOG"
"""Environment variable of the format of lines on stderr: ``json``, else ``words``."""

LOGGED_ELSEWHERE = {"logged_elsewhere": True}
"""``extra`` of a line that the terminal need not show: the command reports it otherwise."""


@dataclass(frozen=True)
class LogContext:
    """Position in a run at which a line was written; empty outside a run."""

    run: str = ""
    arm: str = ""
    stage: str = ""
    iteration: int | None = None

    def __str__(self) -> str:
        parts = (self.run, self.arm, self.stage, self.iteration)
        return " ".join(str(part) for part in parts if part not in ("", None))


_CONTEXT: ContextVar[LogContext] = ContextVar("log_place", default=LogContext())  # noqa: B039 -- frozen


def current_log_context() -> LogContext:
    """Return the context of the running code."""
    return _CONTEXT.get()


@contextmanager
def log_context(
    *, run: str | None = None, arm: str = "", stage: str = "", iteration: int | None = None
) -> Iterator[None]:
    """Set the context within the block; by default the run is the enclosing one."""
    context = LogContext(_CONTEXT.get().run if run is None else run, arm, stage, iteration)
    token = _CONTEXT.set(context)
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def writes_json() -> bool:
    """Return whether lines go to stderr as JSON."""
    return os.environ.get(VARIABLE) == "json"


class WithLogContext(logging.Formatter):
    """Formatter that appends the context to another formatter's text."""

    def __init__(self, other: logging.Formatter | None) -> None:
        super().__init__()
        self._other = other or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line as text."""
        context = str(current_log_context())
        first, *more = self._other.format(record).split("\n")
        return "\n".join([f"{first} [{context}]" if context else first, *more])


class JsonFormatter(logging.Formatter):
    """Formatter that writes a record as one line of JSON, without empty context fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        context = asdict(current_log_context())
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in context.items() if value not in ("", None)},
            "process": record.process,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def write_json() -> None:
    """Write logs to stderr as JSON lines instead of text, Ratchet's from INFO."""
    root = logging.getLogger()
    if any(isinstance(handler.formatter, JsonFormatter) for handler in _on_screen(root)):
        return
    for handler in _on_screen(root):
        root.removeHandler(handler)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    root.addHandler(handler)
    _let_through()


def _on_screen(root: logging.Logger) -> list[logging.Handler]:
    """Return the handlers that write to stderr."""
    streams = (sys.stderr, sys.__stderr__)
    return [h for h in root.handlers if getattr(h, "stream", None) in streams]


@contextmanager
def kept_log(folder: Path, run: str) -> Iterator[None]:
    """Save a run's log lines, including those of libraries, in its folder as JSON."""
    if writes_json():
        write_json()
    handler = _LogFile(folder / LOG_FILE, run)
    _let_through()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def _let_through() -> None:
    for name in OUR_LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(min(logger.level or logging.INFO, logging.INFO))


class _LogFile(logging.FileHandler):
    """Append lines one at a time; several processes may write."""

    def __init__(self, path: Path, run: str) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self._run = run
        self.setLevel(logging.INFO)
        self.setFormatter(JsonFormatter())

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line belongs to this run: others may run in this process."""
        return current_log_context().run == self._run and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; a full disk does not end the run."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def close(self) -> None:
        """Close the file; lines that did not fit on a full disk are lost."""
        with suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- logging's name
        """Drop a line that cannot be written."""
