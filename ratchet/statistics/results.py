"""Accuracy of a table of test results: overall, by group, and between two tables.

Stands between the tables that trainers deliver and the reports and trackers that show them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ratchet.errors import DataError
from ratchet.statistics.bootstrap import paired_difference
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.intervals import clustered_proportion, newcombe_difference

Columns = Mapping[str, Sequence[Any]]
_TELLING = ("y", "task_id")


def accuracy(columns: Columns, level: float = 0.95) -> Estimate:
    """Estimate the share of right decisions.

    Parameters
    ----------
    columns
        Equally long lists with at least ``correct`` (0 or 1) and ``datapoint_id``. A datapoint
        that was tested several times makes a cluster.

    Raises
    ------
    DataError
        If a column is missing.
    """
    return clustered_proportion(
        _column(columns, "correct"), _column(columns, "datapoint_id"), level
    )


def accuracy_by(columns: Columns, by: str, level: float = 0.95) -> dict[Hashable, Estimate]:
    """Estimate the accuracy for each value of a column, in the values' order.

    Rows whose value is None are left out.
    """
    groups: dict[Any, list[int]] = {}
    for row, value in enumerate(_column(columns, by)):
        if value is not None:
            groups.setdefault(value, []).append(row)
    correct, ids = _column(columns, "correct"), _column(columns, "datapoint_id")
    return {
        value: clustered_proportion(
            [correct[row] for row in groups[value]], [ids[row] for row in groups[value]], level
        )
        for value in sorted(groups)
    }


def accuracy_difference(
    first: Columns, second: Columns, *, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Estimate how much more accurate the first table is than the second.

    Paired by datapoint (bootstrap) where both were tested on the same datapoints; as independent
    proportions otherwise.
    """
    if same_datapoints(first, second):
        one, two = (
            (_column(table, "correct"), _column(table, "datapoint_id")) for table in (first, second)
        )
        return paired_difference(one, two, level=level, seed=seed)
    return newcombe_difference(accuracy(first, level), accuracy(second, level))


def same_datapoints(first: Columns, second: Columns) -> bool:
    """Return whether two tables are of the same datapoints.

    That is, most ids are shared, and of shared ids the right answers and tasks agree.
    """
    one, two = ({name: tuple(told) for name, *told in tested(table)} for table in (first, second))
    common = one.keys() & two.keys()
    enough = 2 * len(common) > max(len(one), len(two))
    return enough and all(one[name] == two[name] for name in common)


def tested(columns: Columns) -> set[tuple[Any, ...]]:
    """Return the datapoints of a table, each with what tells it from others of the same id."""
    told = [columns[name] for name in _TELLING if name in columns]
    return set(zip(_column(columns, "datapoint_id"), *told, strict=True))


def _column(columns: Columns, name: str) -> Sequence[Any]:
    if name not in columns:
        raise DataError(
            f"a table of test results has no column {name!r}, got {sorted(columns)};"
            " expected at least datapoint_id and correct."
        )
    return columns[name]
