"""Find the parameters of built-in scenarios, of installed plug-ins and of the user's files.

``ratchet.parameters`` lists the modules that register sections; an installed plug-in names its
module as an entry point in the group ``ratchet.parameters``. Scenarios are in a higher layer, so
their registry is imported by name to find the agents' model of a custom scenario.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ratchet.errors import ParameterError
from ratchet.parameters.base import (
    AGENT_MODELS,
    SCENARIO_NAMES,
    SubParameters,
)
from ratchet.plugins import is_class_spec, load_module
from ratchet.registry import installed_in

if TYPE_CHECKING:
    from ratchet.registry import Registry

    class _Scenario(Protocol):
        @classmethod
        def agent_parameters(cls) -> type[SubParameters]: ...


_PARAMETERS = "ratchet.parameters"
_PATH_KEYS = ("module_path", "custom_trainer_module_path")
_SCENARIOS = "ratchet.scenarios.registry"


@cache
def load_plugins() -> None:
    """Import every module that registers parameters. Runs once."""
    for name in importlib.import_module(_PARAMETERS).BUILT_IN:
        importlib.import_module(name)
    for entry_point in installed_in(_PARAMETERS):
        entry_point.load()


def load_files(data: Mapping[str, object], base_dir: str | Path) -> None:
    """Load the user's files that an experiment names: scenario, trainer, networks and others.

    Sections that they register then exist when the parameters are read. Relative paths start from
    ``base_dir``. Missing files or classes are reported on use.
    """
    scenario = data.get("scenario")
    if isinstance(scenario, str) and is_class_spec(scenario):
        _read_scenario(scenario, base_dir)
    missing = missing_files(data, base_dir)
    for path in named_files(data):
        if path not in missing:
            load_module(path, base_dir)


def start_from_base(data: Mapping[str, Any], base_dir: str | Path) -> dict[str, Any]:
    """Rewrite the paths of the user's files that start from the working directory.

    Paths start from ``base_dir``, the experiment file's folder; a file that exists only relative to
    the working directory gets its path relative to ``base_dir``, so that every process finds it.
    """

    def rewritten(path: str) -> str:
        far = Path(path).expanduser()
        near = Path(base_dir) / far
        if not os.path.isfile(far) or (os.path.isfile(near) and near.samefile(far)):
            return path
        if os.path.isfile(near):
            raise ParameterError(
                f"plug-in {path!r}: got two files, {near.resolve()} and {far.resolve()}, expected"
                " one. Paths start from the experiment file's folder, then from the working"
                " directory; give an absolute path."
            )
        return os.path.relpath(far.resolve(), Path(base_dir).resolve())

    rewritten_data: dict[str, Any] = _with_paths(data, rewritten)
    return rewritten_data


def _with_paths(data: Any, rewritten: Callable[[str], str]) -> Any:  # noqa: ANN401
    """Replace the paths that :func:`named_files` returns."""
    if isinstance(data, str) and is_class_spec(data):
        path, _, name = data.rpartition(":")
        return f"{rewritten(path)}:{name}"
    if isinstance(data, Mapping):
        return {
            key: rewritten(value)
            if key in _PATH_KEYS and isinstance(value, str)
            else _with_paths(value, rewritten)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [_with_paths(value, rewritten) for value in data]
    return data


def missing_files(data: Mapping[str, object], base_dir: str | Path) -> list[str]:
    """Return the missing ones of the user's files that an experiment names."""
    return [
        path
        for path in named_files(data)
        if not os.path.isfile(Path(base_dir) / Path(path).expanduser())
    ]


def named_files(data: object) -> list[str]:
    """Return the user's files that an experiment names, each once."""
    return list(dict.fromkeys(_files(data)))


def _files(data: object) -> Iterator[str]:
    """Yield the files of all ``path/to/file.py:ClassName`` and ``module_path``."""
    if isinstance(data, str) and is_class_spec(data):
        yield data.rpartition(":")[0]
    elif isinstance(data, Mapping):
        yield from (data[key] for key in _PATH_KEYS if isinstance(data.get(key), str))
        for value in data.values():
            yield from _files(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _files(value)


def agent_model(scenario: str) -> type[SubParameters]:
    """Return the model of an agent's parameters in a scenario."""
    load_plugins()
    if scenario not in AGENT_MODELS:
        _read_scenario(scenario, None)
    return AGENT_MODELS[scenario]


def _read_scenario(scenario: str, base_dir: str | Path | None) -> None:
    """Register the names and the agents' model of a scenario given by name, file or entry point."""
    scenarios: Registry[_Scenario] = importlib.import_module(_SCENARIOS).SCENARIOS
    scenario_cls = scenarios.find(scenario, base_dir)
    AGENT_MODELS[scenario] = scenario_cls.agent_parameters()
    SCENARIO_NAMES[scenario] = scenarios.names_of(scenario_cls)
