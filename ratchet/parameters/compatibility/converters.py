"""Upgrade parameters of earlier versions by a chain of converters that describe their changes.

Saved parameters contain ``parameters_version``. Hand-written files need not: without it the
complete chain is applied. So a converter changes only keys and values that the next version no
longer has, and a key whose meaning changes gets a new name. The edit operations take dotted paths,
in which ``*`` stands for every key.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from ratchet.errors import ParameterError, shown
from ratchet.parameters.reading.discovery import load_plugins

VERSION_KEY = "parameters_version"
PARAMETERS_VERSION = 1
"""The version that this code reads, saved with the values."""

Converter: TypeAlias = Callable[[dict[str, Any]], list[str]]
"""Changes nested data in place and returns one sentence for each change."""

logger = logging.getLogger(__name__)

_CONVERTERS: dict[int, Converter] = {}


def register_converter(from_version: int) -> Callable[[Converter], Converter]:
    """Register the converter of parameters of ``from_version`` to the next version.

    Raises ParameterError if that version has a different converter.
    """

    def decorate(converter: Converter) -> Converter:
        known = _CONVERTERS.get(from_version)
        if known is not None and known.__qualname__ != converter.__qualname__:
            raise ParameterError(
                f"parameters of version {from_version} are converted by {known.__qualname__};"
                f" got {converter.__qualname__}. Expected one converter a version."
            )
        _CONVERTERS[from_version] = converter
        return converter

    return decorate


def upgrade_parameters(
    data: Mapping[str, Any], to_version: int = PARAMETERS_VERSION
) -> tuple[dict[str, Any], list[str]]:
    """Return parameters of any version as those of ``to_version``, and a sentence for each change.

    ``data`` are nested as in a file and are not changed. The result has the current names and no
    ``parameters_version``; the list is empty if all names were current.
    """
    importlib.import_module("ratchet.parameters.compatibility.version_0")
    load_plugins()
    converted = deepcopy(dict(data))
    version = converted.pop(VERSION_KEY, 0)
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise ParameterError(
            f"{VERSION_KEY}: got {shown(version)}, expected a whole number from 0."
        )
    if version > to_version:
        raise ParameterError(
            f"{VERSION_KEY}: got {version}, expected at most {to_version}: the parameters were"
            " written by a newer version of Ratchet. Install that one."
        )
    changes: list[str] = []
    for step in range(version, to_version):
        changes += _CONVERTERS[step](converted)
    return converted, changes


def upgraded(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Upgrade parameters as :func:`upgrade_parameters` does, and log each change."""
    converted, changes = upgrade_parameters(data)
    for change in changes:
        logger.warning("%s: parameters of an earlier version: %s", source, change)
    return converted


Nested: TypeAlias = dict[str, Any]
Rewrite: TypeAlias = Callable[[Any], Nested]
"""From an old value to its replacement in the section; empty if the value is current."""


def sections_at(data: Nested, path: str) -> Iterator[Nested]:
    """Yield the sections that a path matches."""
    if not path:
        yield data
        return
    name, _, rest = path.partition(".")
    for key in list(data) if name == "*" else [name]:
        if isinstance(data.get(key), dict):
            yield from sections_at(data[key], rest)


def remove(data: Nested, path: str, values: tuple[object, ...] | None = None) -> bool:
    """Remove a key, with ``values`` only if it has one of them; return whether it existed."""
    parent, name = _split(path)
    sections = [
        section
        for section in sections_at(data, parent)
        if name in section and (values is None or section[name] in values)
    ]
    for section in sections:
        del section[name]
    return bool(sections)


def rename(data: Nested, old: str, new: str) -> list[str]:
    """Move a value to another name: in the same section, deeper in it, or from the top."""
    parent, name = _split(old)
    same_section = f"{parent}." if parent else ""
    sections = [section for section in sections_at(data, parent) if name in section]
    for section in sections:
        is_near = new.startswith(same_section)
        *inner, last = new.removeprefix(same_section).split(".")
        value, target = section.pop(name), section if is_near else data
        for key in inner:
            target = target.setdefault(key, {})
        if last in target:
            raise ParameterError(
                f"{old}: is called {new} now, and both are given: {shown(value)} and"
                f" {shown(target[last])}. Leave the old one out."
            )
        target[last] = value
    return [f"{old}: is called {new} now"] if sections else []


def rewrite(data: Nested, path: str, new_of: Rewrite) -> list[str]:
    """Replace an old value by the result of ``new_of``."""
    parent, name = _split(path)
    changes = []
    for section in sections_at(data, parent):
        if name not in section:
            continue
        new = new_of(section[name])
        if new and new != {name: section[name]}:
            changes.append(f"{path}: {shown(section[name])} is written {new} now")
            del section[name]
            section.update(new)
    return list(dict.fromkeys(changes))


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition(".")
    return parent, name
