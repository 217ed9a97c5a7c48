"""Kinds of datapoints whose accuracy is reported apart, declared by a scenario's own section.

Tests keep the column, pages and comparisons go by it; neither knows what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TestGroups:
    """How the datapoints of a scenario fall into groups.

    Attributes
    ----------
    name
        A short one, for the names of metrics: "test NAME 2".
    column
        The integer field of the datasets, and column of the tables, that tells groups apart.
    title
        What the groups go by, behind the word "by".
    axis
        The same above a column or beside an axis of groups.
    note
        A sentence for readers of a page.
    labels
        Value of the column → what the group is called; other values are their own labels.
    """

    __test__ = False  # not a test case, whatever its name

    name: str
    column: str
    title: str
    axis: str
    note: str
    labels: Mapping[int, str]

    def label(self, value: int) -> str:
        """Return what a group is called."""
        return self.labels.get(value, str(value))
