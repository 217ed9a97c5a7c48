"""Hydra's ``defaults`` lists in experiment files, and Hydra's prefixes of overrides.

``- base`` is ``base.yaml`` in the file's folder, ``- optimizer: small`` is ``optimizer/small.yaml``
if it exists, else a TorchRL option, which stays in the list. The result needs no other file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.errors import ParameterError, nearest, shown
from ratchet.parameters.compatibility.torchrl_files import SECTION, is_group
from ratchet.parameters.compatibility.torchrl_names import library_defaults, package_of
from ratchet.parameters.reading.deep_merge import has_path, merge_nested

Read = Callable[[Path], dict[str, Any]]
_DEFAULTS, _SELF, _GLOBAL = "defaults", "_self_", "_global_"


def with_files(data: Mapping[str, Any], path: Path, read: Read) -> dict[str, Any]:
    """Merge a file's values with those of the files in its list of defaults.

    Parameters
    ----------
    data
        Content of the file at ``path``.
    read
        Function that reads another file's mapping.
    """
    if not isinstance(data.get(_DEFAULTS), list):
        return dict(data)
    composed = _Composed(path.parent, read)
    composed.add_file(path, data, package="", group="")
    entries = list(composed.entries.values())
    if entries == [_SELF]:
        return composed.values
    return {_DEFAULTS: entries, **composed.values}


@dataclass
class _Composed:
    """Entries for the library by package, and merged values, of the files read so far."""

    folder: Path
    read: Read
    entries: dict[str, object] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    _open: list[Path] = field(default_factory=list)

    def add_file(self, path: Path, data: Mapping[str, Any], package: str, group: str) -> None:
        """Add a file's values at a package, and the files and options in its list."""
        if path in self._open:
            circle = " → ".join(file.name for file in [*self._open, path])
            raise ParameterError(f"{path}: defaults: the files name each other: {circle}.")
        is_first = not self._open
        self._open.append(path)
        values = {name: value for name, value in data.items() if name != _DEFAULTS}
        entries = list(data.get(_DEFAULTS, ()))
        for entry in entries:
            _check_entry(path, entry)
        for entry in entries if _SELF in entries else [*entries, _SELF]:
            if entry == _SELF:
                self.values = merge_nested(self.values, _nested(package, values))
                if is_first:
                    self.entries[_SELF] = _SELF
            else:
                self._add_entry(path, entry, package, group)
        self._open.pop()

    def _add_entry(self, path: Path, entry: object, package: str, group: str) -> None:
        name, option = next(iter(entry.items())) if isinstance(entry, Mapping) else (None, entry)
        words = str(option if name is None else name).split()
        last = words[-1]
        if name is None:  # a file, or an option of the group that the file itself is an option of
            names, target, option = group, package, last.partition("@")[0].removeprefix("/")
            target = package_of(last) if "@" in last else package
        else:
            names, _, suffix = last.partition("@")
            names = names.removeprefix("/")
            suffix = suffix or names.replace("/", ".")
            target = suffix if last.startswith("/") or not package else f"{package}.{suffix}"
        target = "" if target == _GLOBAL else target
        if "override" in words and target not in self.entries:
            raise ParameterError(
                f"{path}: defaults: {shown(last)} overrides nothing. Expected one of"
                f" {sorted(set(self.entries) - {_SELF})}; leave `override` out to add it."
            )
        file = self.folder / names / f"{option}.yaml"
        if isinstance(option, str) and os.path.isfile(file):
            self.entries.pop(target, None)
            self.add_file(file, self.read(file), target, names)
        elif name is None and not group:
            raise ParameterError(f"{path}: defaults: there is no file {file}.")
        else:
            self.entries[target] = {f"{names}@{target}": option}


def _check_entry(path: Path, entry: object) -> None:
    """Refuse an entry that is neither a name nor a mapping from one name."""
    name = next(iter(entry)) if isinstance(entry, Mapping) and len(entry) == 1 else entry
    if not isinstance(name, str) or not name.split() or "\0" in str(entry):
        raise ParameterError(
            f"{path}: defaults: got {shown(entry)}, expected the name of a file, such as `- base`,"
            " or a group with its option, such as `- optimizer: adam`."
        )


def _nested(package: str, values: dict[str, Any]) -> dict[str, Any]:
    for name in reversed(package.split(".")) if package else ():
        values = {name: values}
    return values


def plain_overrides(
    data: Mapping[str, Any], overrides: Iterable[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the data without the keys removed by ``~``, and overrides without prefixes.

    ``+`` may name an existing key, as any override may.
    """
    rest, plain = dict(data), []
    for override in overrides:
        if override.startswith("~"):
            name = override[1:].partition("=")[0].strip()
            package = package_of(name)
            if "@" in name or package in map(package_of, library_defaults(data) or ()):
                plain.append(f"{SECTION}.choices.{package}=null")
            else:
                rest = _without(rest, name, override)
        elif override.startswith("+"):
            plain.append(_with_package(override.lstrip("+")))
        else:
            plain.append(override)
    return rest, plain


def _with_package(override: str) -> str:
    """Add the package to an added group: ``hook=x`` is ``hook@hook=x``."""
    name, equals, value = override.partition("=")
    is_added = is_group(name) and not value.startswith(("{", "[", "$"))
    return f"{name}@{name}={value}" if equals and is_added else override


def _without(data: Mapping[str, Any], path: str, override: str) -> dict[str, Any]:
    """Remove a dotted path from the experiment or from the library's groups."""
    for location in (path, f"{SECTION}.config.{path}"):
        if has_path(data, location):
            return _removed(data, location.split("."))
    known = [*data, *_config(data)]
    raise ParameterError(
        f"override {shown(override)}: there is no {shown(path)} to remove."
        f"{nearest(path.partition('.')[0], known)}"
    )


def _config(data: Mapping[str, Any]) -> Mapping[str, Any]:
    section = data.get(SECTION)
    config = section.get("config") if isinstance(section, Mapping) else None
    return config if isinstance(config, Mapping) else {}


def _removed(data: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    first, *inner = names
    if not inner:
        return {name: value for name, value in data.items() if name != first}
    return {**data, first: _removed(data[first], inner)}
