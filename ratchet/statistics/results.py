"""Accuracies, mean returns and mean evaluator metrics of tables of test results."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ratchet.errors import DataError
from ratchet.statistics.estimate import Estimate
from ratchet.statistics.intervals import (
    bootstrap_interval,
    clustered_proportion,
    newcombe_difference,
    paired_difference,
)

Columns = Mapping[str, Sequence[Any]]
REWARD_PREFIX = "reward."
METRIC_PREFIX = "metric."
"""Prefix of columns with evaluator metrics."""
PLAYED_LABEL = "played_label"
"""Column of tables whose labels are made by play, and therefore do not identify datapoints."""
_IDENTIFYING = ("y", "task_id")


def accuracy(columns: Columns, level: float = 0.95) -> Estimate:
    """Estimate the share of correct decisions.

    Parameters
    ----------
    columns
        Equally long lists with at least ``correct`` (0 or 1) and ``datapoint_id``. A datapoint
        that was tested several times forms a cluster.
    """
    return clustered_proportion(
        _column(columns, "correct"), _column(columns, "datapoint_id"), level
    )


def accuracy_by(columns: Columns, by: str, level: float = 0.95) -> dict[Hashable, Estimate]:
    """Estimate the accuracy for each value of a column, in ascending order.

    Rows with value None are skipped.
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
    """Estimate accuracy(first) − accuracy(second).

    Paired by datapoint (bootstrap) if both tables cover the same datapoints, otherwise as
    independent proportions.
    """
    if same_datapoints(first, second):
        one, two = (
            (_column(table, "correct"), _column(table, "datapoint_id")) for table in (first, second)
        )
        return paired_difference(one, two, level=level, seed=seed)
    return newcombe_difference(accuracy(first, level), accuracy(second, level))


def same_datapoints(first: Columns, second: Columns) -> bool:
    """Return whether two tables cover the same datapoints.

    That is: most ids are shared, and the labels and tasks of shared ids are equal.
    """
    one, two = ({name: tuple(rest) for name, *rest in tested(table)} for table in (first, second))
    common = one.keys() & two.keys()
    enough = 2 * len(common) > max(len(one), len(two))
    return enough and all(one[name] == two[name] for name in common)


def tested(columns: Columns) -> set[tuple[Any, ...]]:
    """Return a table's datapoints: ids with labels of data and tasks, where recorded."""
    ignored = "y" if PLAYED_LABEL in columns else None
    rest = [columns[name] for name in _IDENTIFYING if name in columns and name != ignored]
    return set(zip(_column(columns, "datapoint_id"), *rest, strict=True))


def _column(columns: Columns, name: str) -> Sequence[Any]:
    if name not in columns:
        raise DataError(
            f"a table of test results has no column {name!r}, got {sorted(columns)};"
            " expected at least datapoint_id and correct."
        )
    return columns[name]


def paid_agents(columns: Columns) -> list[str]:
    """List the agents whose returns a table contains, in column order."""
    return [name.removeprefix(REWARD_PREFIX) for name in columns if name.startswith(REWARD_PREFIX)]


def evaluator_metrics(columns: Columns) -> list[str]:
    """List the evaluator metrics with values in a table, in column order."""
    return [
        name.removeprefix(METRIC_PREFIX)
        for name, values in columns.items()
        if name.startswith(METRIC_PREFIX) and any(value is not None for value in values)
    ]


def has_decisions(columns: Columns) -> bool:
    """Return whether a table records the correctness of decisions."""
    return any(value is not None for value in columns.get("correct", ()))


def agents_by_return(columns: Columns) -> list[str]:
    """List the agents whose mean return is a test result.

    Empty if decisions are recorded; agents rewarded exactly by correctness are omitted.
    """
    if not has_decisions(columns):
        return paid_agents(columns)
    if "decision" in columns:
        return []
    correct = list(columns["correct"])
    return [name for name in paid_agents(columns) if list(columns[REWARD_PREFIX + name]) != correct]


def mean_return(columns: Columns, agent: str, level: float = 0.95, *, seed: int = 0) -> Estimate:
    """Estimate an agent's mean return, the sum of its rewards in an episode, by the bootstrap.

    Parameters
    ----------
    columns
        With ``reward.AGENT`` and ``datapoint_id``. Repeated tests of a datapoint form a
        cluster.
    level, seed
        As in :func:`ratchet.statistics.intervals.bootstrap_interval`.
    """
    return mean_of(columns, REWARD_PREFIX + agent, level, seed=seed)


def mean_metric(columns: Columns, name: str, level: float = 0.95, *, seed: int = 0) -> Estimate:
    """Estimate the mean of an evaluator metric, as in :func:`mean_return`.

    Answers without a value of the metric are skipped.
    """
    return mean_of(columns, METRIC_PREFIX + name, level, seed=seed)


def mean_of(columns: Columns, column: str, level: float = 0.95, *, seed: int = 0) -> Estimate:
    """Estimate the mean of a column; rows without a value are skipped."""
    values, ids = _values_of(columns, column)
    return bootstrap_interval(values, clusters=ids, level=level, seed=seed)


def mean_difference(
    first: Columns, second: Columns, column: str, *, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Estimate the difference first − second of a column's mean, paired by datapoint.

    Both tables must be of the same test set. Rows without a value are skipped.
    """
    one, two = (_values_of(table, column) for table in (first, second))
    return paired_difference(one, two, level=level, seed=seed)


def _values_of(columns: Columns, column: str) -> tuple[Sequence[float], Sequence[Any]]:
    """Return a column's values and their datapoints, without rows that lack a value."""
    pairs = zip(columns[column], columns["datapoint_id"], strict=True)
    values, ids = zip(*[pair for pair in pairs if pair[0] is not None], strict=True)
    return values, ids
