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

    Raises
    ------
    StateError
        If an attribute cannot be stored, or could not be restored; the message names it.
    """
    built = _built(owner) if in_place else {}
    result: Attributes = {}
    for name, value in sorted(_assigned(owner).items()):
        if name in owner.transient_attributes:
            continue
        from trainers.attribute_tree import take_attribute  # torch takes seconds

        try:
            stored = take_attribute(value, f"self.{name}", built.get(name), owner)
        except StateError:
            if strict:
                raise
            continue
        if stored is not None:
            result[name] = stored
    return result


def put_attributes(owner: NamedTrainer, stored: Mapping[str, Any]) -> None:
    """Restore the result of :func:`take_attributes`; remove attributes assigned since."""
    built = _built(owner)
    for name in _assigned(owner).keys() - stored.keys() - built.keys():
        if name not in owner.transient_attributes:
            del owner.__dict__[name]
    for name, value in stored.items():
        from trainers.attribute_tree import put_attribute  # torch takes seconds

        owner.__dict__[name] = put_attribute(owner.__dict__.get(name), value, f"self.{name}")
        owner.__dict__.setdefault("_assigned", {})[name] = None


def save_attributes(stored: Attributes, directory: Path) -> None:
    """Write attributes next to a state; no files if there are none."""
    if stored:
        from trainers.state_tree import save_tree  # torch takes seconds

        save_tree(stored, directory, ATTRIBUTES_NAME)


def load_attributes(directory: Path) -> Attributes:
    """Read the files of :func:`save_attributes`; empty if there are none."""
    if not (directory / f"{ATTRIBUTES_NAME}.json").is_file():
        return {}
    from trainers.state_tree import load_tree  # torch takes seconds

    found: Attributes = load_tree(directory, ATTRIBUTES_NAME)
    return found


def _assigned(owner: NamedTrainer) -> Attributes:
    values = vars(owner)
    return {name: values[name] for name in values.get("_assigned", ()) if name in values}


def _built(owner: NamedTrainer) -> Attributes:
    """Return the attributes at the time of the first take or put of a state."""
    found: Attributes = owner.__dict__.setdefault("_attributes_built", _assigned(owner))
    return found
