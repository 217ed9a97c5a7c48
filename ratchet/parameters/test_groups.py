"""Kinds of datapoints whose accuracy is reported apart, declared by a scenario's own section.

Tests keep the column, pages and comparisons go by it; neither knows what it means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ratchet.parameters.base import SECTIONS, SubParameters, names_of_scenario
from ratchet.parameters.discovery import load_plugins

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters


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
        """Say what a group is called."""
        return self.labels.get(value, str(value))


def test_groups(hyper_params: HyperParameters) -> tuple[TestGroups, ...]:
    """List the groups that the sections of the experiment's scenario declare."""
    names = names_of_scenario(hyper_params.scenario)
    sections = [name for name, each in SECTIONS.items() if names.intersection(each.scenarios)]
    return _declared(getattr(hyper_params, name) for name in sections)


def saved_test_groups(hyper_params: Mapping[str, Any]) -> tuple[TestGroups, ...]:
    """List the groups of a run's saved parameters; none where today's sections can't read them."""
    load_plugins()
    scenario = hyper_params.get("scenario")
    found = []
    for name, section in SECTIONS.items():
        if scenario in section.scenarios and name in hyper_params:
            try:
                found.append(section.model.model_validate(hyper_params[name]))
            except ValidationError:
                continue
    return _declared(found)


def _declared(sections: Iterable[SubParameters]) -> tuple[TestGroups, ...]:
    return tuple(groups for section in sections for groups in section.test_groups())


test_groups.__test__ = False  # type: ignore[attr-defined]
