"""Attributes that a custom trainer class assigns to ``self``: recorded, stored and restored.

States of all trainer families contain them, so that a resumed run has the same values as an
uninterrupted one. Imports no torch; :mod:`trainers.attribute_tree` defines the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import StateError
from ratchet.plugins import is_framework

if TYPE_CHECKING:
    from trainers.named import NamedTrainer

Attributes = dict[str, Any]
"""Attribute → plain data and tensors, with marks where an object is restored in place."""

ATTRIBUTES_NAME = "attributes"
"""The files of stored attributes, next to the rest of a state."""
RECORDS = ("_assigned", "_attributes_built")
"""Attributes of a trainer with the names that were assigned, and their first values."""
_ORDER = "$order"
"""The names of stored attributes in the order in which they were taken."""


def is_custom(kind: type) -> bool:
    """Return whether a class is defined outside Ratchet."""
    return not is_framework(kind.__module__)


def is_custom_method(kind: type, name: str) -> bool:
    """Return whether a class outside Ratchet defines a class's method, if it has one."""
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    return owner is not None and is_custom(owner)


def take_attributes(
    owner: NamedTrainer, *, strict: bool = True, in_place: bool = True
) -> Attributes:
    """Return the attributes assigned by a custom class, as stored in a state.

    Parameters
    ----------
    owner
        The trainer. Its first state marks the end of its construction.
    strict
        Whether an attribute that cannot be stored is an error; otherwise it is left out, for
        classes that store it themselves.
    in_place
        Whether objects are stored that must exist when they are restored, such as modules.
    """
    built = _built(owner) if in_place else {}
    values = {n: v for n, v in _assigned(owner).items() if n not in owner.transient_attributes}
    if not values:
        return {}
    from trainers.attribute_tree import ObjectGraph, take_attribute  # torch takes seconds

    graph, result = ObjectGraph(), Attributes()
    for name in _in_order(values, owner):
        paths = dict(graph.paths)
        try:
            stored = take_attribute(values[name], f"self.{name}", built.get(name), owner, graph)
        except StateError:
            if strict:
                raise
            graph.paths = paths  # no reference to the omitted attribute
            continue
        if stored is not None:
            result[name] = stored
    return {**result, _ORDER: list(result)} if result else {}


def put_attributes(owner: NamedTrainer, stored: Mapping[str, Any]) -> None:
    """Restore the result of :func:`take_attributes`; remove attributes assigned since."""
    built = _built(owner)
    for name in _assigned(owner).keys() - stored.keys() - built.keys():
        if name not in owner.transient_attributes:
            del owner.__dict__[name]
    if not stored:
        return
    from trainers.attribute_tree import ObjectGraph, put_attribute  # torch takes seconds

    graph = ObjectGraph()
    for name in stored.get(_ORDER, stored):  # states of earlier versions have no order
        existing, path = owner.__dict__.get(name), f"self.{name}"
        owner.__dict__[name] = put_attribute(existing, stored[name], path, graph)
        owner.__dict__.setdefault("_assigned", {})[name] = None


def save_attributes(stored: Attributes, directory: Path) -> None:
    """Write attributes, if any, next to a state."""
    if stored:
        from trainers.state_tree import save_tree  # torch takes seconds

        save_tree(stored, directory, ATTRIBUTES_NAME)


def load_attributes(directory: Path) -> Attributes:
    """Read the files of :func:`save_attributes`; empty if none exist."""
    if not (directory / f"{ATTRIBUTES_NAME}.json").is_file():
        return {}
    from trainers.state_tree import load_tree  # torch takes seconds

    attributes: Attributes = load_tree(directory, ATTRIBUTES_NAME)
    return attributes


def _in_order(values: Mapping[str, Any], owner: NamedTrainer) -> list[str]:
    """Return the names, those of objects that exist when they are restored first."""
    from trainers.attribute_tree import is_in_place

    def is_new(name: str) -> bool:
        try:
            return not is_in_place(values[name], owner)
        except StateError:  # reported when the attribute is taken
            return True

    return sorted(values, key=lambda name: (is_new(name), name))


def _assigned(owner: NamedTrainer) -> Attributes:
    values = vars(owner)
    return {name: values[name] for name in values.get("_assigned", ()) if name in values}


def _built(owner: NamedTrainer) -> Attributes:
    """Return the attributes at the time of the first take or put of a state."""
    attributes: Attributes = owner.__dict__.setdefault("_attributes_built", _assigned(owner))
    return attributes
