"""``DisplayTable``: a table for terminals, notebooks and programs."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table

_TEXT_WIDTH = 100
_NAME_WIDTH = 50
"""Widest first column that is never wrapped: names and paths are copied."""


@dataclass(frozen=True)
class DisplayTable:
    """A table as texts and as plain data.

    Attributes
    ----------
    records
        Each row as numbers and names by column; default: the texts.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    records: Sequence[Mapping[str, object]] | None = None

    def to_records(self) -> list[dict[str, object]]:
        """Return the rows as plain data."""
        if self.records is not None:
            return [dict(record) for record in self.records]
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_dataframe(self) -> DataFrame:
        """Return the rows as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame.from_records(self.to_records())

    def __rich__(self) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self.title or None, title_justify="left", box=box.SIMPLE_HEAD)
        for i, column in enumerate(self.columns):
            widest = max((len(row[i]) for row in self.rows), default=0)
            is_name = i == 0 and widest <= _NAME_WIDTH
            table.add_column(column, overflow="fold", no_wrap=is_name)
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=_TEXT_WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")

    def _repr_html_(self) -> str:
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self.rows
        )
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
