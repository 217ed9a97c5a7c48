"""Mean returns of a table of test results, where nothing is decided but agents are paid.

Beside :mod:`ratchet.statistics.results`, which has the accuracies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.statistics.bootstrap import bootstrap_interval, paired_difference
from ratchet.statistics.estimate import Estimate

Columns = Mapping[str, Sequence[Any]]
PREFIX = "reward."
METRIC_PREFIX = "metric."
"""Prefix of the columns of an evaluator's metrics."""


def paid_agents(columns: Columns) -> list[str]:
    """List the agents whose returns a table has, in its order."""
    return [name.removeprefix(PREFIX) for name in columns if name.startswith(PREFIX)]


def evaluator_metrics(columns: Columns) -> list[str]:
    """List the evaluator's metrics that a table has values of, in its order."""
    return [
        name.removeprefix(METRIC_PREFIX)
        for name, values in columns.items()
        if name.startswith(METRIC_PREFIX) and any(value is not None for value in values)
    ]


def has_decisions(columns: Columns) -> bool:
    """Return whether a table says what was decided rightly."""
    return any(value is not None for value in columns.get("correct", ()))


def agents_by_return(columns: Columns) -> list[str]:
    """List the agents whose mean return is a result of a test.

    It is none where decisions are counted, nor where it is paid by right or wrong alone.
    """
    if not has_decisions(columns):
        return paid_agents(columns)
    if "decision" in columns:
        return []
    right = list(columns["correct"])
    return [name for name in paid_agents(columns) if list(columns[PREFIX + name]) != right]


def mean_return(columns: Columns, agent: str, level: float = 0.95, *, seed: int = 0) -> Estimate:
    """Estimate an agent's mean return, the sum of its rewards in an episode, by the bootstrap.

    Parameters
    ----------
    columns
        With ``reward.AGENT`` and ``datapoint_id``. A datapoint tested several times makes a
        cluster.
    level, seed
        As in :func:`ratchet.statistics.bootstrap.bootstrap_interval`.
    """
    return mean_of(columns, PREFIX + agent, level, seed=seed)


def mean_metric(columns: Columns, name: str, level: float = 0.95, *, seed: int = 0) -> Estimate:
    """Estimate the mean of an evaluator's metric, as :func:`mean_return`.

    Answers without a value of the metric are left out.
    """
    return mean_of(columns, METRIC_PREFIX + name, level, seed=seed)


def mean_of(columns: Columns, column: str, level: float = 0.95, *, seed: int = 0) -> Estimate:
    """Estimate the mean of a column; rows without a value are left out."""
    values, ids = _values_of(columns, column)
    return bootstrap_interval(values, clusters=ids, level=level, seed=seed)


def mean_difference(
    first: Columns, second: Columns, column: str, *, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Estimate how much larger the mean of a column is in the first table.

    Paired by datapoint: both are of the same test set. Rows without a value are left out.
    """
    one, two = (_values_of(table, column) for table in (first, second))
    return paired_difference(one, two, level=level, seed=seed)


def _values_of(columns: Columns, column: str) -> tuple[Sequence[float], Sequence[Any]]:
    """Return a column's values and their datapoints, without the rows that have none."""
    pairs = zip(columns[column], columns["datapoint_id"], strict=True)
    values, ids = zip(*[pair for pair in pairs if pair[0] is not None], strict=True)
    return values, ids
