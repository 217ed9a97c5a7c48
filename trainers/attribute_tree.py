"""Attributes of a custom trainer as plain data and tensors, without pickle.

Objects that a state cannot contain directly (modules, optimizers, random generators, custom
classes) are restored in place, into the ones that a new trainer's constructor creates.
"""

from __future__ import annotations

import logging
import random
import re
import types
from collections import deque
from collections.abc import Mapping
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.errors import StateError
from ratchet.plugins import is_framework
from trainers.state_tree import flatten_tree, unflatten_tree

_STATE, _OBJECT, _PARAMETER, _SAME = "$state", "$object", "$parameter", "$same"
_SET, _DEQUE, _MAPPING, _DEVICE = "$set", "$deque", "$mapping", "$device"
_IN_PLACE = {_STATE, _OBJECT, _PARAMETER, _SAME, _MAPPING}
_PLAIN = (bool, int, float, str, np.generic, np.ndarray, torch.Size, TensorDictBase)
_STATELESS = (
    *(type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType),
    *(partial, re.Pattern, logging.Logger, torch.device, torch.dtype),
)
_CONSTANTS = (PurePath, Enum)
_MISSING = object()


def take_attribute(value: object, path: str, built: object, owner: object) -> Any:  # noqa: ANN401
    """Return an attribute as plain data and tensors that share no memory with it.

    None if a new trainer's constructor creates the same value: functions, constants, Ratchet's
    components.

    Parameters
    ----------
    value, path
        The attribute, and its name in messages.
    built
        Its value when the trainer was constructed; None if it had none.
    owner
        The trainer, to which the value may refer.

    Raises
    ------
    StateError
        If it cannot be stored, or a new trainer has no counterpart to restore it into.
    """
    stored = _take(value, path, {id(owner)})
    if stored == {_SAME: True} and (isinstance(value, _STATELESS) or built is value):
        return None
    if _is_in_place(stored):
        _check_restorable(stored, built, value, path)
    return unflatten_tree(*flatten_tree({"value": stored}, path))


def put_attribute(existing: object, stored: Any, path: str) -> Any:  # noqa: ANN401
    """Return the value that :func:`take_attribute` returned, restored in place where it must be."""
    copied = unflatten_tree(*flatten_tree(stored))
    return _put(_MISSING if existing is None else existing, copied["value"], path)


def _is_in_place(stored: object) -> bool:
    """Return whether a part of a stored value is restored into an existing object."""
    if isinstance(stored, Mapping):
        return bool(stored.keys() & _IN_PLACE) or any(map(_is_in_place, stored.values()))
    return isinstance(stored, list | tuple) and any(map(_is_in_place, stored))


def _check_restorable(stored: Any, built: object, value: object, path: str) -> None:  # noqa: ANN401
    """Refuse a value without a counterpart in a new trainer, into which it could be restored."""
    if type(built) is not type(value) or (stored == {_SAME: True} and built is not value):
        raise StateError(
            f"{path}: a {_type_name(value)} that was assigned during training cannot be restored"
            " when the run is resumed; expected __init__ to create it. Create it there, store"
            " numbers and tensors instead, or list the attribute in transient_attributes if it can"
            " be rebuilt."
        )


def _check_deque(parts: list[Any], value: deque[Any], path: str) -> None:
    """Refuse objects whose counterparts in a new trainer a moving position cannot identify."""
    for part, item, place in zip(parts, value, range(len(parts)), strict=True):
        if _is_in_place(part):
            raise StateError(
                f"{path}[{place}]: a {_type_name(item)} in a deque cannot be restored when the run"
                " is resumed; expected numbers, texts and tensors without gradients. Store those"
                " instead, use a list of objects that __init__ creates, or list the attribute in"
                " transient_attributes if it can be rebuilt."
            )


def _take(value: object, path: str, above: set[int]) -> Any:  # noqa: ANN401
    """Return plain data and tensors for a value, with marks where objects are restored in place."""
    if value is None or (isinstance(value, _PLAIN) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Tensor):
        if value.requires_grad and value.is_leaf:
            return {_PARAMETER: value.detach()}
        kept = value.detach()
        return kept if kept.device.type == "cpu" else {_DEVICE: [str(kept.device), kept]}
    if (state := _state_of(value)) is not _MISSING:
        return {_STATE: state}
    if (
        id(value) in above
        or isinstance(value, (*_STATELESS, *_CONSTANTS))
        or is_framework(type(value).__module__)
    ):
        return {_SAME: True}
    above = above | {id(value)}
    if isinstance(value, Mapping):
        items = {key: _take(item, f"{path}[{key!r}]", above) for key, item in value.items()}
        return items if type(value) is dict else {_MAPPING: items}
    if isinstance(value, list | tuple | deque):
        parts = [_take(item, f"{path}[{place}]", above) for place, item in enumerate(value)]
        if isinstance(value, deque):
            _check_deque(parts, value, path)
            return {_DEQUE: [value.maxlen, parts]}
        return tuple(parts) if isinstance(value, tuple) else parts
    if isinstance(value, set | frozenset):
        return {_SET: [isinstance(value, frozenset), sorted(value, key=repr)]}
    if hasattr(value, "__dict__"):
        own = vars(value)
        return {_OBJECT: {name: _take(own[name], f"{path}.{name}", above) for name in own}}
    raise StateError(
        f"{path}: a {_type_name(value)} cannot be stored with the trainer's state, and a resumed"
        " run would differ; expected numbers, texts, tensors, modules, optimizers and containers of"
        " these. Store those instead, or list the attribute in transient_attributes if it can be"
        " rebuilt."
    )


def _state_of(value: object) -> Any:  # noqa: ANN401
    """Return the state of an object that can load it; _MISSING for any other."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value.state_dict()
    return _MISSING


def _put(existing: Any, stored: Any, path: str) -> Any:  # noqa: ANN401
    """Return the stored value, restored in place where marked."""
    if isinstance(stored, Mapping) and len(stored) == 1:
        mark, content = next(iter(stored.items()))
        if mark in _IN_PLACE:
            if existing is _MISSING or existing is None:
                raise StateError(
                    f"{path}: stored in the state, but this trainer does not create it in __init__."
                    " The trainer's code has changed; train from scratch."
                )
            return _put_in_place(existing, mark, content, path)
        if mark == _DEVICE:
            return content[1].to(content[0])
        if mark == _SET:
            return frozenset(content[1]) if content[0] else set(content[1])
        if mark == _DEQUE:
            return deque((_put(_MISSING, item, path) for item in content[1]), content[0])
    if isinstance(stored, Mapping):
        old = existing if isinstance(existing, Mapping) else {}
        return {k: _put(old.get(k, _MISSING), item, f"{path}[{k!r}]") for k, item in stored.items()}
    if isinstance(stored, list | tuple):
        before = existing if isinstance(existing, list | tuple) else ()
        parts = [
            _put(before[place] if place < len(before) else _MISSING, item, f"{path}[{place}]")
            for place, item in enumerate(stored)
        ]
        return parts if isinstance(stored, list) else tuple(parts)
    return stored


def _put_in_place(existing: Any, mark: str, content: Any, path: str) -> Any:  # noqa: ANN401
    if mark == _PARAMETER:
        with torch.no_grad():
            existing.copy_(content)
    elif mark == _MAPPING:
        restored = {k: _put(existing.get(k, _MISSING), v, path) for k, v in content.items()}
        existing.clear()
        existing.update(restored)
    elif mark == _OBJECT:
        for name in vars(existing).keys() - content.keys():
            del vars(existing)[name]
        for name, value in content.items():
            before = vars(existing).get(name, _MISSING)
            vars(existing)[name] = _put(before, value, f"{path}.{name}")
    elif mark == _STATE:
        _load_state(existing, content)
    return existing


def _load_state(existing: Any, state: Any) -> None:  # noqa: ANN401
    if isinstance(existing, torch.Generator):
        existing.set_state(state)
    elif isinstance(existing, random.Random):
        existing.setstate(state)
    elif isinstance(existing, np.random.Generator):
        existing.bit_generator.state = state
    else:
        existing.load_state_dict(state)


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
