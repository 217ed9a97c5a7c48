"""``ResultTable``: an arm's results on each datapoint of a dataset.

Trainers return one for each test; run folders store them as JSON; statistics read their columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ratchet.errors import DataError
from ratchet.statistics.results import paid_agents
from ratchet.tracking.files import read_plain_file
from ratchet.tracking.manifest import MAIN_ARM

REQUIRED_COLUMNS = ("datapoint_id", "y", "decision", "correct")
"""Columns of a table of decisions; others have ``correct`` or agents' rewards."""


def holds_results(columns: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether columns include results: answers to datapoints, or agents' returns."""
    return "decision" in columns or "correct" in columns or bool(paid_agents(columns))


@dataclass(frozen=True)
class ResultTable:
    """Columns of equal length, with a row for each test of a datapoint.

    Attributes
    ----------
    name
        "test" for the test set, "test-NAME" for an extra one, "pretrain-AGENT" for an agent's own
        answers after its pretraining.
    columns
        At least ``datapoint_id``, ``y``, ``decision`` (2: none) and ``correct`` (0 or 1); if
        available ``rounds``, ``reward.AGENT``, ``played_label`` and columns of groups. Without
        decisions, ``datapoint_id`` and ``correct`` or at least one ``reward.AGENT``; ``task_id`` is
        the datapoint's task.

    Raises
    ------
    DataError
        If a column is missing or lengths differ.
    """

    name: str
    columns: Mapping[str, Sequence[Any]]
    arm: str = MAIN_ARM

    def __post_init__(self) -> None:
        missing = [name for name in REQUIRED_COLUMNS if name not in self.columns]
        if not {"y", "decision"} & set(self.columns) and holds_results(self.columns):
            missing = [name for name in missing if name == "datapoint_id"]
        if missing:
            raise DataError(
                f"table {self.name!r} of arm {self.arm!r} has no {missing}, got"
                f" {sorted(self.columns)}; expected at least {list(REQUIRED_COLUMNS)}."
            )
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(
                f"table {self.name!r} of arm {self.arm!r} has columns of different lengths:"
                f" {lengths}; expected a value for each row."
            )

    def __len__(self) -> int:
        return len(self.columns["datapoint_id"])

    @property
    def file_name(self) -> str:
        """The name of the table's file in the run folder."""
        return f"{self.arm}-{self.name}.json"

    def to_json(self) -> str:
        """Write the table as JSON."""
        columns = {name: list(column) for name, column in self.columns.items()}
        content = {"arm": self.arm, "name": self.name, "columns": columns}
        return json.dumps(content, allow_nan=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of :meth:`to_json`.

        Raises
        ------
        DataError
            If the file is not such a table.
        """
        try:
            data = json.loads(read_plain_file(path))
            return cls(data["name"], data["columns"], data["arm"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{path}: not a table of results ({error}). Remove it; it is written again when"
                " the run is resumed."
            ) from error
