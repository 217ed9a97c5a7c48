"""Files that build on others: those that a list of ``defaults`` names, as Hydra finds them.

``- base`` is ``base.yaml`` beside the file, ``- optimizer: small`` is ``optimizer/small.yaml`` if
there is one, else an option of TorchRL's, which stays in the list. The result needs no other file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.errors import ParameterError, shown
from ratchet.parameters.changes import merge_nested
from ratchet.parameters.torchrl_names import package_of

Read = Callable[[Path], dict[str, Any]]
_DEFAULTS, _SELF, _GLOBAL = "defaults", "_self_", "_global_"


def with_files(data: Mapping[str, Any], path: Path, read: Read) -> dict[str, Any]:
    """Put a file's values over, or under, those of the files that its list of defaults names.

    Parameters
    ----------
    data
        What the file at ``path`` says.
    read
        Reads another file's mapping.

    Raises
    ------
    ParameterError
        If files name each other in a circle, or what is to be overridden is not there.
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
    """What was read so far: entries for the library by package, and values over each other."""

    folder: Path
    read: Read
    entries: dict[str, object] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    _open: list[Path] = field(default_factory=list)

    def add_file(self, path: Path, data: Mapping[str, Any], package: str, group: str) -> None:
        """Add what a file says, at a package, and what it names in its list."""
        if path in self._open:
            circle = " → ".join(file.name for file in [*self._open, path])
            raise ParameterError(f"{path}: defaults: the files name each other: {circle}.")
        is_first = not self._open
        self._open.append(path)
        own = {name: value for name, value in data.items() if name != _DEFAULTS}
        entries = list(data.get(_DEFAULTS, ()))
        for entry in entries:
            _check_entry(path, entry)
        for entry in entries if _SELF in entries else [*entries, _SELF]:
            if entry == _SELF:
                self.values = merge_nested(self.values, _nested(package, own))
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
            names, place, option = group, package, last.partition("@")[0].removeprefix("/")
            place = package_of(last) if "@" in last else package
        else:
            names, _, given = last.partition("@")
            names = names.removeprefix("/")
            given = given or names.replace("/", ".")
            place = given if last.startswith("/") or not package else f"{package}.{given}"
        place = "" if place == _GLOBAL else place
        if "override" in words and place not in self.entries:
            raise ParameterError(
                f"{path}: defaults: {shown(last)} overrides nothing. Expected one of"
                f" {sorted(set(self.entries) - {_SELF})}; leave `override` out to add it."
            )
        file = self.folder / names / f"{option}.yaml"
        if isinstance(option, str) and os.path.isfile(file):
            self.entries.pop(place, None)
            self.add_file(file, self.read(file), place, names)
        elif name is None and not group:
            raise ParameterError(f"{path}: defaults: there is no file {file}.")
        else:
            self.entries[place] = {f"{names}@{place}": option}


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
