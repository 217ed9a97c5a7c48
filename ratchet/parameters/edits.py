"""Edit nested parameters by dotted paths; each edit says in a sentence what it did.

What converters of earlier versions are made of. In a path ``*`` stands for every key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from ratchet.errors import ParameterError, shown

Nested: TypeAlias = dict[str, Any]
Rewrite: TypeAlias = Callable[[Any], Nested]
"""From an old value to what stands in its section in its place; empty for one that is new."""


def sections_at(data: Nested, path: str) -> Iterator[Nested]:
    """Go through the sections that a path means."""
    if not path:
        yield data
        return
    name, _, rest = path.partition(".")
    for key in list(data) if name == "*" else [name]:
        if isinstance(data.get(key), dict):
            yield from sections_at(data[key], rest)


def remove(data: Nested, path: str, values: tuple[object, ...] | None = None) -> bool:
    """Remove a key, with ``values`` only where it has one of them; return whether it was there."""
    parent, name = _split(path)
    found = [
        section
        for section in sections_at(data, parent)
        if name in section and (values is None or section[name] in values)
    ]
    for section in found:
        del section[name]
    return bool(found)


def rename(data: Nested, old: str, new: str) -> list[str]:
    """Move a value to another name: in the same section, deeper in it, or from the top."""
    parent, name = _split(old)
    same_section = f"{parent}." if parent else ""
    found = [section for section in sections_at(data, parent) if name in section]
    for section in found:
        is_near = new.startswith(same_section)
        *inner, last = new.removeprefix(same_section).split(".")
        value, place = section.pop(name), section if is_near else data
        for key in inner:
            place = place.setdefault(key, {})
        if last in place:
            raise ParameterError(
                f"{old}: is called {new} now, and both are given: {shown(value)} and"
                f" {shown(place[last])}. Leave the old one out."
            )
        place[last] = value
    return [f"{old}: is called {new} now"] if found else []


def rewrite(data: Nested, path: str, new_of: Rewrite) -> list[str]:
    """Put what ``new_of`` makes of an old value in its place."""
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
