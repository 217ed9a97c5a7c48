"""Find the parameters of built-in scenarios, of installed plug-ins and of the user's files.

The modules that register sections are said in ``ratchet.parameters``; an installed plug-in names
its module as an entry point in the group ``ratchet.parameters``. Scenarios stand on a higher
floor: they are asked by the name of their registry, for the agents of a scenario of the user's.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ratchet.parameters.base import AGENT_MODELS, SCENARIO_NAMES, SECTIONS, SubParameters
from ratchet.plugins import is_class_spec, load_class
from ratchet.registry import installed_in

if TYPE_CHECKING:
    from ratchet.registry import Registry

    class _Scenario(Protocol):
        @classmethod
        def agent_parameters(cls) -> type[SubParameters]: ...


_PARAMETERS = "ratchet.parameters"
_SCENARIOS = "ratchet.scenarios.registry"


@cache
def load_plugins() -> None:
    """Import every module that registers parameters. Runs once."""
    for name in importlib.import_module(_PARAMETERS).BUILT_IN:
        importlib.import_module(name)
    for entry_point in installed_in(_PARAMETERS):
        entry_point.load()


def load_files(data: Mapping[str, object], base_dir: str | Path, known: Collection[str]) -> None:
    """Load the file of a user's scenario; those of a protocol and trainer where sections miss.

    So that what they register is there when an experiment's parameters are read. ``known`` may
    stand at the top of an experiment without them; relative paths start from ``base_dir``.

    Raises
    ------
    ParameterError, UnknownNameError
        If a file can't be loaded or has no such class.
    """
    scenario = data.get("scenario")
    if isinstance(scenario, str) and is_class_spec(scenario):
        _read_scenario(scenario, base_dir)
    if data.keys() <= {*known, *SECTIONS}:
        return
    for reference in (data.get("interaction_protocol"), data.get("trainer")):
        if isinstance(reference, Mapping):
            reference = f"{reference.get('module_path')}:{reference.get('class_name')}"
        if not (isinstance(reference, str) and is_class_spec(reference)):
            continue
        if (Path(base_dir) / reference.rpartition(":")[0]).is_file():  # else its user says so
            load_class(reference, base_dir)


def agent_model(scenario: str) -> type[SubParameters]:
    """Return the model of an agent's parameters in a scenario.

    Raises
    ------
    UnknownNameError
        If there is no such scenario; with the nearest name.
    """
    load_plugins()
    if scenario not in AGENT_MODELS:
        _read_scenario(scenario, None)
    return AGENT_MODELS[scenario]


def _read_scenario(scenario: str, base_dir: str | Path | None) -> None:
    """Note what is said of a scenario by its class, found by name, by file or by entry point."""
    scenarios: Registry[_Scenario] = importlib.import_module(_SCENARIOS).SCENARIOS
    found = scenarios.find(scenario, base_dir)
    AGENT_MODELS[scenario] = found.agent_parameters()
    SCENARIO_NAMES[scenario] = scenarios.names_of(found)
