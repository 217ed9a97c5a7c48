"""What the command line says, and how: colours on a terminal, plain text elsewhere.

Rich is imported when something is said.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """Make a console that writes to stdout, or to stderr."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=not stream.isatty())


def print_error(text: str) -> None:
    """Print an error in red, to stderr."""
    console(stderr=True).print(text, style="red", markup=False)


def print_warning(text: str) -> None:
    """Print a warning in yellow, to stderr."""
    console(stderr=True).print(text, style="yellow", markup=False)


def print_plain(text: str) -> None:
    """Print a line as it is."""
    console().print(text, markup=False)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; numbers and words alike as given."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)
