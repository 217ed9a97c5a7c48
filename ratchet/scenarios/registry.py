"""The registry of scenarios by name; an own one may be given as ``path/to/file.py:Class``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ratchet.registry import Registry

if TYPE_CHECKING:
    from ratchet.scenarios.base import Scenario

_ScenarioClass = TypeVar("_ScenarioClass", bound="type[Scenario]")

SCENARIOS: Registry[Scenario] = Registry(
    "scenario", "ratchet.scenarios.base:Scenario", "ratchet.scenarios"
)


def register_scenario(name: str) -> Callable[[_ScenarioClass], _ScenarioClass]:
    """Give a scenario the name that experiment files use.

    Raises
    ------
    ParameterError
        If another class has taken the name.
    """
    return SCENARIOS.register(name)


def scenario_names() -> list[str]:
    """Return the names of all scenarios, without importing any."""
    return SCENARIOS.names()


def build_scenario(name: str, base_dir: Path | None = None) -> Scenario:
    """Make a scenario of a registered name, or of ``path/to/file.py:ClassName``.

    Paths of the user's files start from ``base_dir``, the working folder if not given.

    Raises
    ------
    UnknownNameError
        If there is none of that name; the message has the nearest.
    ParameterError
        If the file or the class in it is no scenario.
    """
    scenario = SCENARIOS.find(name, base_dir)()
    scenario.base_dir = base_dir
    return scenario
