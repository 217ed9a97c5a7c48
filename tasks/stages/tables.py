"""Tables of answers in stage folders: one row per datapoint, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

Table = Mapping[str, Sequence[Any]]
TABLE_FILE = "table.json"


def write_table(folder: Path, table: Table) -> None:
    """Write columns into a stage's folder."""
    columns = {name: list(column) for name, column in table.items()}
    (folder / TABLE_FILE).write_text(json.dumps(columns, allow_nan=False) + "\n")


def read_table(folder: Path) -> Table | None:
    """Read what :func:`write_table` wrote; None if the stage has no table."""
    path = folder / TABLE_FILE
    return cast(Table, json.loads(path.read_text())) if path.is_file() else None
