"""Output of the command line: colours on a terminal, plain text otherwise, or JSON.

Imports Rich only when there is output. Commands continue when their terminal or pipe is closed.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, TypedDict

from ratchet.reports.display_table import DisplayTable

if TYPE_CHECKING:
    from rich.console import Console


class Document(TypedDict):
    """Output of a command with ``--json``."""

    tables: list[dict[str, object]]
    notes: list[str]
    warnings: list[str]
    errors: list[str]


_CLOSED = (errno.EPIPE, errno.EIO)
_document: Document | None = None
_has_lines = False
"""Whether records were written as separate lines; if so, the final document is omitted."""


@contextmanager
def output_as_json() -> Iterator[None]:
    """Collect all output and write it to stdout at the end as one JSON document.

    A block within another has its own document.
    """
    global _document, _has_lines  # one stdout a process
    outer = _document, _has_lines
    _document = document = Document(tables=[], notes=[], warnings=[], errors=[])
    _has_lines = False
    try:
        yield
    finally:
        if not _has_lines:
            sys.stdout.write(f"{_to_json(document, indent=2)}\n")
        elif document["errors"]:
            print_json_line({"errors": document["errors"]})
        _document, _has_lines = outer


def prints_json() -> bool:
    """Return whether output is collected for a JSON document."""
    return _document is not None


def print_json_line(record: Mapping[str, object]) -> None:
    """Write a record immediately as a separate line; this omits the final document."""
    global _has_lines
    _has_lines = True
    sys.stdout.write(f"{_to_json(record)}\n")
    sys.stdout.flush()


def _to_json(content: object, indent: int | None = None) -> str:
    """Return standard JSON: NaN and infinities become null."""
    plain = json.loads(json.dumps(content, default=str), parse_constant=lambda _: None)
    return json.dumps(plain, indent=indent, ensure_ascii=False)


def console(*, stderr: bool = False) -> Console:
    """Return a console that writes to stdout or stderr."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=not stream.isatty())


def print_error(text: str) -> None:
    """Print an error in red, to stderr."""
    note_error(text)
    console(stderr=True).print(text, style="red", markup=False)


def note_error(text: str) -> None:
    """Add an error to the JSON document without printing it."""
    if _document is not None:
        _document["errors"].append(text)


def print_warning(text: str) -> None:
    """Print a warning in yellow, to stderr."""
    if _document is not None:
        _document["warnings"].append(text)
    console(stderr=True).print(text, style="yellow", markup=False)


def print_plain(text: str) -> None:
    """Print a line without markup."""
    if _document is not None:
        _document["notes"].append(text)
        return
    console().print(text, markup=False)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    records: Sequence[Mapping[str, object]] | None = None,
) -> None:
    """Print a table of strings; JSON output contains ``records`` instead, if given."""
    show_table(DisplayTable(title, columns, rows, records))


def show_table(table: DisplayTable) -> None:
    """Print a table."""
    if _document is not None:
        _document["tables"].append({"title": table.title, "rows": table.to_records()})
        return
    console().print(table)


class _Output(io.FileIO):
    """Stream that discards output after its reader has closed it, so that the command continues."""

    def write(self, content: object, /) -> int:
        """Write the content, or discard it after the other end was closed."""
        try:
            return super().write(content)  # type: ignore[arg-type] # any buffer, as of FileIO
        except OSError as error:
            if error.errno not in _CLOSED:
                raise
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return super().write(content)  # type: ignore[arg-type]


def survive_closing() -> None:
    """Continue without output when the terminal or the pipe is closed.

    SIGHUP from a closed terminal ends a command in the same way as SIGTERM, so that its run is
    marked as ended; a command under ``nohup`` ignores it.
    """
    outlive_reader()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _end)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def outlive_reader() -> None:
    """Discard stdout and stderr, and logs written to them, once their reader is gone.

    The reader of a deployed flow run is its worker. Rich, which prints Prefect's log, raises
    SystemExit when it cannot write, so the flow run would end with its worker.
    """
    replaced = {}
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and stream is not None:
            stream.flush()
            raw = _Output(number, "wb", closefd=False)
            replaced[stream] = io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=True,
            )
            setattr(sys, name, replaced[stream])
            setattr(sys, f"__{name}__", replaced[stream])
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream in replaced:
            handler.setStream(replaced[handler.stream])
            if console := getattr(handler, "console", None):  # Prefect's
                console.file = handler.stream


def _end(number: int, frame: FrameType | None) -> None:
    """Forward SIGHUP to a flow's SIGTERM handler; outside a flow, act like Ctrl-C."""
    if number == signal.SIGHUP and signal.getsignal(signal.SIGTERM) is not _end:
        signal.raise_signal(signal.SIGTERM)
        return
    raise KeyboardInterrupt
