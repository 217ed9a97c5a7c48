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


def paid_agents(columns: Columns) -> list[str]:
    """List the agents whose returns a table has, in its order."""
    return [name.removeprefix(PREFIX) for name in columns if name.startswith(PREFIX)]


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
    values, ids = columns[PREFIX + agent], columns["datapoint_id"]
    return bootstrap_interval(values, clusters=ids, level=level, seed=seed)


def return_difference(
    first: Columns, second: Columns, agent: str, *, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Estimate how much larger an agent's mean return is in the first table.

    Paired by datapoint: both are of the same test set.
    """
    one, two = ((table[PREFIX + agent], table["datapoint_id"]) for table in (first, second))
    return paired_difference(one, two, level=level, seed=seed)
