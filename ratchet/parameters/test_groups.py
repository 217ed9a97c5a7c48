"""Groups of datapoints that the sections of an experiment's scenario declare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ratchet.parameters.base import SECTIONS, SubParameters, TestGroups, names_of_scenario
from ratchet.parameters.reading.discovery import load_plugins

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters


def test_groups(hyper_params: HyperParameters) -> tuple[TestGroups, ...]:
    """Return the groups that the sections of the experiment's scenario declare."""
    names = names_of_scenario(hyper_params.scenario)
    sections = [name for name, each in SECTIONS.items() if names.intersection(each.scenarios)]
    return _declared(getattr(hyper_params, name) for name in sections)


def saved_test_groups(hyper_params: Mapping[str, Any]) -> tuple[TestGroups, ...]:
    """Return the groups of saved parameters; none where today's sections can't read them."""
    load_plugins()
    scenario = hyper_params.get("scenario")
    sections = []
    for name, section in SECTIONS.items():
        if scenario in section.scenarios and name in hyper_params:
            try:
                sections.append(section.model.model_validate(hyper_params[name]))
            except ValidationError:
                continue
    return _declared(sections)


def _declared(sections: Iterable[SubParameters]) -> tuple[TestGroups, ...]:
    return tuple(groups for section in sections for groups in section.test_groups())


test_groups.__test__ = False  # type: ignore[attr-defined]
