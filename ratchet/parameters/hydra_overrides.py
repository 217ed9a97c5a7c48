"""Hydra's words on the command line, as its users write them: ``+a=1``, ``++a=1``, ``~a``.

They are brought to plain overrides ``a.b=value``; what is taken away is taken from the file's data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ratchet.errors import ParameterError, nearest, shown
from ratchet.parameters.torchrl_files import SECTION, is_group
from ratchet.parameters.torchrl_names import library_defaults, package_of


def plain_overrides(
    data: Mapping[str, Any], overrides: Iterable[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return an experiment's data without what ``~`` takes away, and overrides without prefixes.

    What ``+`` adds need not be new, as all that is written here is allowed to be.

    Raises
    ------
    ParameterError
        If there is nothing to take away.
    """
    rest, plain = dict(data), []
    for override in overrides:
        if override.startswith("~"):
            name = override[1:].partition("=")[0].strip()
            package = package_of(name)
            if "@" in name or package in _packages(data):
                plain.append(f"{SECTION}.choices.{package}=null")
            else:
                rest = _without(rest, name, override)
        elif override.startswith("+"):
            plain.append(_with_package(override.lstrip("+")))
        else:
            plain.append(override)
    return rest, plain


def _with_package(override: str) -> str:
    """Say of an added group where it goes: ``hook=x`` is ``hook@hook=x``."""
    name, equals, value = override.partition("=")
    is_added = is_group(name) and not value.startswith(("{", "[", "$"))
    return f"{name}@{name}={value}" if equals and is_added else override


def _packages(data: Mapping[str, Any]) -> list[str]:
    return [package_of(entry) for entry in library_defaults(data) or ()]


def _without(data: Mapping[str, Any], path: str, override: str) -> dict[str, Any]:
    """Leave out what lies under a dotted path: of the experiment, or of the library's groups."""
    for place in (path, f"{SECTION}.config.{path}"):
        if _lies_in(data, place):
            return _removed(data, place.split("."))
    known = [*data, *_config(data)]
    raise ParameterError(
        f"override {shown(override)}: there is no {shown(path)} to take away."
        f"{nearest(path.partition('.')[0], known)}"
    )


def _config(data: Mapping[str, Any]) -> Mapping[str, Any]:
    section = data.get(SECTION)
    config = section.get("config") if isinstance(section, Mapping) else None
    return config if isinstance(config, Mapping) else {}


def _lies_in(data: object, path: str) -> bool:
    for name in path.split("."):
        if not (isinstance(data, Mapping) and name in data):
            return False
        data = data[name]
    return True


def _removed(data: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    first, *inner = names
    if not inner:
        return {name: value for name, value in data.items() if name != first}
    return {**data, first: _removed(data[first], inner)}
