"""Fill in ``${a.b}`` of an experiment file, within bounds on how much that makes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.errors import ParameterError, shorten

MAX_DEPTH = 100
MAX_VALUES = 100_000
"""The number of values of a file, with all values that its aliases and references stand for."""

_REFERENCE = re.compile(r"\$\{\s*([^${}:]*)")
_Extent = tuple[int, int]


def interpolate(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a file's values with all references filled in.

    Raises
    ------
    ParameterError
        For a reference to nowhere.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        result = OmegaConf.to_container(OmegaConf.create(data), resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "?"
        first_line = str(error).splitlines()[0]
        raise ParameterError(f"{path}: {shorten(key)}: {shorten(first_line, 500)}.") from error
    assert isinstance(result, dict)  # made from a dict
    return {str(key): value for key, value in result.items()}


def check_references(data: dict[str, Any], path: Path) -> None:
    """Refuse references that stand for too much, or follow each other too far.

    Raises
    ------
    ParameterError
        With the first value that is too much.
    """
    _Sizes(data, path).of(data, (), 0)


@dataclass
class _Sizes:
    """Upper bounds on the number and the depth of values once references are filled in.

    A reference whose name contains another one counts as the section in front of that.
    """

    root: dict[str, Any]
    path: Path
    known: dict[tuple[str, ...], _Extent | None] = field(default_factory=dict)

    def of(self, value: object, place: tuple[str, ...], depth: int) -> _Extent:
        """Return the extent of a value at a place; of one that contains itself as if it were 1."""
        if place in self.known:
            return self.known[place] or (1, 1)  # OmegaConf refuses circles
        if depth > MAX_DEPTH:
            raise self._error(place, f"references follow each other over {MAX_DEPTH} levels")
        self.known[place] = None
        parts = [self.of(each, at, depth + 1) for at, each in self._parts(value, place)]
        size = 1 + sum(size for size, _ in parts)
        height = 1 + max((height for _, height in parts), default=0)
        if size > MAX_VALUES:
            raise self._error(place, f"references stand for more than {MAX_VALUES:,} values")
        if depth + height > MAX_DEPTH:
            raise self._error(place, f"references follow each other over {MAX_DEPTH} levels")
        self.known[place] = size, height
        return size, height

    def _parts(
        self, value: object, place: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], object]]:
        """Go through the values in a section, a list or the references of a text."""
        if isinstance(value, Mapping):
            yield from (((*place, str(name)), each) for name, each in value.items())
        elif isinstance(value, list):
            yield from (((*place, str(number)), each) for number, each in enumerate(value))
        elif isinstance(value, str):
            for name in _REFERENCE.findall(value):
                yield self._find(name.strip(), place)

    def _find(self, name: str, place: tuple[str, ...]) -> tuple[tuple[str, ...], object]:
        """Return the value that a reference names, or the nearest section around it."""
        inner = name.lstrip(".")
        dots = len(name) - len(inner)
        at: tuple[str, ...] = place[: max(0, len(place) - dots)] if dots else ()
        for part in [part for part in re.split(r"[.\[\]]+", inner) if part]:
            if not self._has((*at, part)):
                break
            at = (*at, part)
        return at, self._value(at)

    def _has(self, place: tuple[str, ...]) -> bool:
        return self._value(place) is not _MISSING

    def _value(self, place: tuple[str, ...]) -> object:
        value: Any = self.root
        for name in place:
            if isinstance(value, Mapping) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                return _MISSING
        return value

    def _error(self, place: tuple[str, ...], problem: str) -> ParameterError:
        return ParameterError(f"{self.path}: {shorten('.'.join(place))}: {problem}.")


_MISSING = object()
