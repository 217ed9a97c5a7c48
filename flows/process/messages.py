"""What the command line says, and how: colours on a terminal, plain text elsewhere, or JSON.

Rich is imported when something is said.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict

from ratchet.reports.shown_table import ShownTable

if TYPE_CHECKING:
    from rich.console import Console


class Document(TypedDict):
    """What a command has said, as ``--json`` writes it."""

    tables: list[dict[str, object]]
    notes: list[str]
    warnings: list[str]
    errors: list[str]


_document: Document | None = None
_has_lines = False
"""Whether records were written as lines of their own, after which there is no document."""


@contextmanager
def output_as_json() -> Iterator[None]:
    """Gather what is printed and write it to stdout in the end, as one JSON document."""
    global _document, _has_lines  # one stdout a process
    _document = document = Document(tables=[], notes=[], warnings=[], errors=[])
    _has_lines = False
    try:
        yield
    finally:
        _document = None
        if not _has_lines:
            sys.stdout.write(f"{_to_json(document, indent=2)}\n")
        elif document["errors"]:
            print_json_line({"errors": document["errors"]})


def prints_json() -> bool:
    """Whether what is printed is gathered."""
    return _document is not None


def print_json_line(record: Mapping[str, object]) -> None:
    """Write a record as a line of its own at once; there is no document in the end then."""
    global _has_lines
    _has_lines = True
    sys.stdout.write(f"{_to_json(record)}\n")
    sys.stdout.flush()


def _to_json(content: object, indent: int | None = None) -> str:
    """Write JSON as all programs read it: what is no number, or infinite, is null."""
    plain = json.loads(json.dumps(content, default=str), parse_constant=lambda _: None)
    return json.dumps(plain, indent=indent, ensure_ascii=False)


def console(*, stderr: bool = False) -> Console:
    """Make a console that writes to stdout, or to stderr."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=not stream.isatty())


def print_error(text: str) -> None:
    """Print an error in red, to stderr."""
    note_error(text)
    console(stderr=True).print(text, style="red", markup=False)


def note_error(text: str) -> None:
    """Gather an error that is printed by somebody else."""
    if _document is not None:
        _document["errors"].append(text)


def print_warning(text: str) -> None:
    """Print a warning in yellow, to stderr."""
    if _document is not None:
        _document["warnings"].append(text)
    console(stderr=True).print(text, style="yellow", markup=False)


def print_plain(text: str) -> None:
    """Print a line as it is."""
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
    """Print a table; numbers and words alike as given. JSON has the ``records``, if there are."""
    show_table(ShownTable(title, columns, rows, records))


def show_table(table: ShownTable) -> None:
    """Print a table."""
    if _document is not None:
        _document["tables"].append({"title": table.title, "rows": table.to_records()})
        return
    console().print(table)
