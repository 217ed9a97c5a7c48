"""Find the parameters of built-in scenarios, of installed plug-ins and of the user's files.

The modules that register sections are said in ``ratchet.parameters``; an installed plug-in names
its module as an entry point in the group ``ratchet.parameters``. Scenarios stand on a higher
floor: they are asked by the name of their registry, for the agents of a scenario of the user's.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ratchet.parameters.base import AGENT_MODELS, SCENARIO_NAMES, SubParameters
from ratchet.plugins import is_class_spec, load_module
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


def load_files(data: Mapping[str, object], base_dir: str | Path) -> None:
    """Load the user's files that an experiment names: of scenario, trainer, networks and the rest.

    So that what they register is there when the parameters are read, whether it is given or has
    its defaults. Relative paths start from ``base_dir``. That a file or a class in it is missing
    is for whoever uses it to say.

    Raises
    ------
    ParameterError, UnknownNameError
        If a file can't be loaded, or the scenario's class is not there.
    """
    scenario = data.get("scenario")
    if isinstance(scenario, str) and is_class_spec(scenario):
        _read_scenario(scenario, base_dir)
    missing = missing_files(data, base_dir)
    for path in named_files(data):
        if path not in missing:
            load_module(path, base_dir)


def missing_files(data: Mapping[str, object], base_dir: str | Path) -> list[str]:
    """Return the user's files that an experiment names and that are not there."""
    return [
        path
        for path in named_files(data)
        if not (Path(base_dir) / Path(path).expanduser()).is_file()
    ]


def named_files(data: object) -> list[str]:
    """Return the user's files that an experiment names, each once."""
    return list(dict.fromkeys(_files(data)))


def _files(data: object) -> Iterator[str]:
    """Go through the files of all ``path/to/file.py:ClassName`` and ``module_path``."""
    if isinstance(data, str) and is_class_spec(data):
        yield data.rpartition(":")[0]
    elif isinstance(data, Mapping):
        path = data.get("module_path", data.get("custom_trainer_module_path"))
        if isinstance(path, str):
            yield path
        for value in data.values():
            yield from _files(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _files(value)


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
