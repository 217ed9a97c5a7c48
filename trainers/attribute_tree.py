"""Attributes of a custom trainer as plain data and tensors, without pickle.

Objects that a state cannot contain directly (modules, optimizers, random generators, custom
classes) are restored in place, into the ones that a new trainer's constructor creates.
"""

from __future__ import annotations

import dis
import io
import logging
import random
import re
import types
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.errors import StateError
from ratchet.plugins import is_framework
from trainers.state_tree import flatten_tree, unflatten_tree

_STATE, _OBJECT, _PARAMETER, _SAME = "$state", "$object", "$parameter", "$same"
_SHARED = "$shared"
_SET, _DEQUE, _MAPPING, DEVICE = "$set", "$deque", "$mapping", "$device"
_IN_PLACE = {_STATE, _OBJECT, _PARAMETER, _SAME, _MAPPING}
_IMMUTABLE = (bool, int, float, str, np.generic, torch.Size)
_ARRAYS = (np.ndarray, TensorDictBase)
_STATELESS = (
    *(type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType),
    *(partial, re.Pattern, logging.Logger, torch.device, torch.dtype),
)
_CONSTANTS = (PurePath, Enum)
_MISSING = object()
Value: TypeAlias = Any
"""A part of an attribute, or its stored form: plain data and tensors."""
_TENSOR_OF = "::"
"""Between a module's path and the name of one of its tensors, in the path of a shared object."""


@dataclass
class ObjectGraph:
    """Objects of a trainer's attributes by path, so that each is stored and restored once.

    Attributes
    ----------
    paths
        Path of each object taken, by its identity.
    objects
        Each object restored, by its path.
    """

    paths: dict[int, str] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)

    def note(self, value: object, path: str) -> None:
        """Record an object that is taken, and the tensors of a module."""
        self.paths.setdefault(id(value), path)
        if isinstance(value, torch.nn.Module):
            for name, tensor in value.state_dict(keep_vars=True).items():
                self.paths.setdefault(id(tensor), f"{path}{_TENSOR_OF}{name}")

    def find(self, path: str) -> Value:
        """Return a restored object, or a tensor of a restored module."""
        home, _, name = path.partition(_TENSOR_OF)
        if home not in self.objects:
            raise StateError(f"state: {path} is missing. The state is damaged.")
        restored_object = self.objects[home]
        return restored_object.state_dict(keep_vars=True)[name] if name else restored_object


def take_attribute(
    value: object, path: str, built: object, owner: object, graph: ObjectGraph
) -> Value:
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
    graph
        The objects of the attributes taken before.
    """
    stored = _Taker(graph).take(value, path, {id(owner)})
    if stored == {_SAME: True} and (isinstance(value, _STATELESS) or built is value):
        return None
    if _is_in_place(stored):
        _check_restorable(stored, built, value, path)
    return unflatten_tree(*flatten_tree({"value": stored}, path))


def put_attribute(
    existing: object,
    stored: Value,
    path: str,
    graph: ObjectGraph,
) -> Value:
    """Return the value that :func:`take_attribute` returned, restored in place where it must be.

    ``graph``: the objects of the attributes restored before, in the order in which they were taken.
    """
    copied = unflatten_tree(*flatten_tree(stored))
    return _Putter(graph).put(_MISSING if existing is None else existing, copied["value"], path)


def is_in_place(value: object, owner: object) -> bool:
    """Return whether a part of an attribute is restored into an object that exists already."""
    return _is_in_place(_Taker(ObjectGraph()).take(value, "", {id(owner)}))


def _is_in_place(stored: object) -> bool:
    """Return whether a part of a stored value is restored into an existing object."""
    if isinstance(stored, Mapping):
        return bool(stored.keys() & _IN_PLACE) or any(map(_is_in_place, stored.values()))
    return isinstance(stored, list | tuple) and any(map(_is_in_place, stored))


def _check_restorable(stored: Value, built: object, value: object, path: str) -> None:
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
    for part, item, index in zip(parts, value, range(len(parts)), strict=True):
        if _is_in_place(part):
            raise StateError(
                f"{path}[{index}]: a {_type_name(item)} in a deque cannot be restored when the run"
                " is resumed; expected numbers, texts and tensors without gradients. Store those"
                " instead, use a list of objects that __init__ creates, or list the attribute in"
                " transient_attributes if it can be rebuilt."
            )


@dataclass
class _Taker:
    """Converts values to plain data and tensors, with marks where objects are restored in place."""

    graph: ObjectGraph

    def take(self, value: object, path: str, above: set[int]) -> Value:
        """Return a value as plain data; one that was taken before as a mark with its path."""
        if value is None or (isinstance(value, _IMMUTABLE) and not isinstance(value, Enum)):
            return value
        if id(value) in above:
            return {_SAME: True}
        if id(value) in self.graph.paths:
            return {_SHARED: self.graph.paths[id(value)]}
        _check_hidden_state(value, path)
        state = _state_of(value)
        if state is _MISSING and _is_constant(value):
            return {_SAME: True}
        if not isinstance(value, tuple | frozenset):
            self.graph.note(value, path)
        if isinstance(value, _ARRAYS):
            return value
        if isinstance(value, Tensor):
            return _stored_tensor(value)
        if state is not _MISSING:
            return {_STATE: state}
        return self._take_parts(value, path, above | {id(value)})

    def _take_parts(self, value: Value, path: str, above: set[int]) -> Value:
        if isinstance(value, Mapping):
            items = {k: self.take(item, f"{path}[{k!r}]", above) for k, item in value.items()}
            return items if type(value) is dict else {_MAPPING: items}
        if isinstance(value, list | tuple | deque):
            parts = [self.take(item, f"{path}[{i}]", above) for i, item in enumerate(value)]
            if isinstance(value, deque):
                _check_deque(parts, value, path)
                return {_DEQUE: [value.maxlen, parts]}
            return tuple(parts) if isinstance(value, tuple) else parts
        if isinstance(value, set | frozenset):
            return {_SET: [isinstance(value, frozenset), sorted(value, key=repr)]}
        if hasattr(value, "__dict__") and not isinstance(value, io.IOBase):
            attributes = vars(value).items()
            parts_of = {name: self.take(each, f"{path}.{name}", above) for name, each in attributes}
            return {_OBJECT: parts_of}
        raise StateError(
            f"{path}: a {_type_name(value)} cannot be stored with the trainer's state, and a"
            " resumed run would differ; expected numbers, texts, tensors, modules, optimizers and"
            " containers of these. Store those instead, or list the attribute in"
            " transient_attributes if it can be rebuilt."
        )


def _is_constant(value: object) -> bool:
    """Return whether a new trainer has the same value: functions, paths, Ratchet's components."""
    is_array = isinstance(value, (Tensor, *_ARRAYS))
    constants = (*_STATELESS, *_CONSTANTS)
    return not is_array and (isinstance(value, constants) or is_framework(type(value).__module__))


def _stored_tensor(value: Tensor) -> Value:
    if value.requires_grad and value.is_leaf:
        return {_PARAMETER: value.detach()}
    content = value.detach()
    return content if content.device.type == "cpu" else {DEVICE: [str(content.device), content]}


def _check_hidden_state(value: object, path: str) -> None:
    """Refuse a function that can change what it closes over, which no state contains."""
    if not isinstance(value, types.FunctionType) or not value.__closure__:
        return
    assigned = {i.argval for i in dis.get_instructions(value) if i.opname == "STORE_DEREF"}
    for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True):
        content = cell.cell_contents
        if name in assigned or isinstance(content, list | dict | set | deque | io.IOBase):
            raise StateError(
                f"{path}: the function {value.__qualname__} uses {name!r} of the function around"
                " it, which a state cannot contain; expected an attribute of the trainer. Assign"
                f" it to self, or list the attribute in transient_attributes if {name!r} never"
                " changes."
            )


def _state_of(value: object) -> Value:
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


@dataclass
class _Putter:
    """Restores stored values, in place where marked."""

    graph: ObjectGraph

    def put(self, existing: Value, stored: Value, path: str) -> Value:
        """Return the value restored, in place where marked."""
        if isinstance(stored, Mapping) and len(stored) == 1:
            mark, content = next(iter(stored.items()))
            if mark == _SHARED:
                return self.graph.find(content)
            if mark in _IN_PLACE:
                if existing is _MISSING or existing is None:
                    raise StateError(
                        f"{path}: stored in the state, but this trainer does not create it in"
                        " __init__. The trainer's code has changed; train from scratch."
                    )
                self.graph.objects[path] = existing
                return self._put_in_place(existing, mark, content, path)
        restored = self._create(existing, stored, path)
        self.graph.objects[path] = restored
        return restored

    def _create(self, existing: Value, stored: Value, path: str) -> Value:
        """Return a new object for a stored value, with parts restored from ``existing``."""
        if isinstance(stored, Mapping) and len(stored) == 1:
            mark, content = next(iter(stored.items()))
            if mark == DEVICE:
                return content[1].to(content[0])
            if mark == _SET:
                return frozenset(content[1]) if content[0] else set(content[1])
            if mark == _DEQUE:
                numbered = enumerate(content[1])
                items = [self.put(_MISSING, item, f"{path}[{index}]") for index, item in numbered]
                return deque(items, content[0])
        if isinstance(stored, Mapping):
            return self._put_items(existing, stored, path)
        if isinstance(stored, list | tuple):
            before = existing if isinstance(existing, list | tuple) else ()
            parts = [
                self.put(before[i] if i < len(before) else _MISSING, item, f"{path}[{i}]")
                for i, item in enumerate(stored)
            ]
            return parts if isinstance(stored, list) else tuple(parts)
        return stored

    def _put_items(
        self,
        existing: Value,
        stored: Mapping[Any, Any],
        path: str,
    ) -> dict[Any, Any]:
        old = existing if isinstance(existing, Mapping) else {}
        return {k: self.put(old.get(k, _MISSING), v, f"{path}[{k!r}]") for k, v in stored.items()}

    def _put_in_place(
        self,
        existing: Value,
        mark: str,
        content: Value,
        path: str,
    ) -> Value:
        if mark == _PARAMETER:
            with torch.no_grad():
                existing.copy_(content)
        elif mark == _MAPPING:
            restored = self._put_items(existing, content, path)
            existing.clear()
            existing.update(restored)
        elif mark == _OBJECT:
            attributes: dict[str, Value] = existing.__dict__
            for name in attributes.keys() - content.keys():
                del attributes[name]
            for name, value in content.items():
                before = attributes.get(name, _MISSING)
                attributes[name] = self.put(before, value, f"{path}.{name}")
        elif mark == _STATE:
            _load_state(existing, content)
        return existing


def _load_state(existing: Value, state: Value) -> None:
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
