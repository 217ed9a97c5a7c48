"""Where a log line was written: run, arm, stage, iteration; as words or as JSON lines.

The place is entered where a run and its stages are worked (:func:`log_place`) and travels with the
context, as that of progress does: lines of all libraries within a stage carry it.
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
"""What a run's folder keeps of its lines, from INFO on."""
VARIABLE = "RATCHET_LOG"
"""The environment variable that has lines written to stderr as JSON: ``json``, else ``words``."""

SAID_ELSEWHERE = {"said_elsewhere": True}
"""``extra`` of a line that the terminal need not show: whoever has started the run is told so."""


@dataclass(frozen=True)
class Place:
    """Where in a run a line was written; empty outside of one."""

    run: str = ""
    arm: str = ""
    stage: str = ""
    iteration: int | None = None

    def __str__(self) -> str:
        parts = (self.run, self.arm, self.stage, self.iteration)
        return " ".join(str(part) for part in parts if part not in ("", None))


_PLACE: ContextVar[Place] = ContextVar("log_place", default=Place())  # noqa: B039 -- frozen


def current_place() -> Place:
    """Return where the running code stands."""
    return _PLACE.get()


@contextmanager
def log_place(
    *, run: str | None = None, arm: str = "", stage: str = "", iteration: int | None = None
) -> Iterator[None]:
    """Say where what runs inside stands; the run is the one around it if not given."""
    place = Place(_PLACE.get().run if run is None else run, arm, stage, iteration)
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


def writes_json() -> bool:
    """Return whether lines go to stderr as JSON."""
    return os.environ.get(VARIABLE) == "json"


class WithPlace(logging.Formatter):
    """Writes as another formatter does, with the place behind it."""

    def __init__(self, other: logging.Formatter | None) -> None:
        super().__init__()
        self._other = other or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line in words."""
        place = str(current_place())
        first, *more = self._other.format(record).split("\n")
        return "\n".join([f"{first} [{place}]" if place else first, *more])


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON; what of its place is empty is left out."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        place = {name: value for name, value in asdict(current_place()).items() if value != ""}
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in place.items() if value is not None},
            "process": record.process,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def write_json() -> None:
    """Write what is logged to stderr as JSON lines, ours from INFO on; instead of words."""
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
    """Keep the lines of a run, and of whatever it calls, in its folder as JSON."""
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
    """Adds a line at a time; several processes may."""

    def __init__(self, path: Path, run: str) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self._run = run
        self.setLevel(logging.INFO)
        self.setFormatter(JsonFormatter())

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is of this run: others may be running in this process."""
        return current_place().run == self._run and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; a full disk does not end the run here."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def close(self) -> None:
        """Close the file; what a full disk did not take is lost."""
        with suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- logging's name
        """Let a line go that cannot be written."""
