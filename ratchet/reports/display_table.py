"""``DisplayTable``: a table for terminals, notebooks and programs."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

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
    details
        Columns that terminals leave out.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    records: Sequence[Mapping[str, object]] | None = None
    details: Collection[str] = ()

    @classmethod
    def from_mappings(
        cls,
        title: str,
        rows: Sequence[Mapping[str, str]],
        records: Sequence[Mapping[str, object]] | None = None,
        details: Collection[str] = (),
    ) -> Self:
        """Build a table from cells by column: those of the first row, a dash where one lacks it."""
        columns = list(rows[0]) if rows else []
        cells = [[row.get(column, "–") for column in columns] for row in rows]
        return cls(title, columns, cells, records, details)

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
        main_columns = [i for i, column in enumerate(self.columns) if column not in self.details]
        for i in main_columns:
            widest = max((len(row[i]) for row in self.rows), default=0)
            is_name = i == 0 and widest <= _NAME_WIDTH
            table.add_column(self.columns[i], overflow="fold", no_wrap=is_name)
        for row in self.rows:
            table.add_row(*(Text(row[i]) for i in main_columns))
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=_TEXT_WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")

    def to_markdown(self) -> str:
        """Format the table without its title: the first column left-aligned, others right."""
        alignments = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [self.columns, alignments, *self.rows]
        escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in lines)
        return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)

    def _repr_html_(self) -> str:
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self.rows
        )
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
