"""Nested states of any library as JSON, and tensors by path, without pickle.

Losses, optimizers and hooks return nested dictionaries of tensors, arrays, numbers and texts, as do
the states of trainers with a custom loop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.errors import CheckPointNotFoundError, StateError

Tree = Any  # the result of any state_dict(): mappings, sequences, leaves
Json = Any
Tensors = dict[str, Tensor]

_TENSOR, _PAIRS, _TUPLE, _TENSORS, _FLOAT = "$tensor", "$pairs", "$tuple", "$tensordict", "$float"
_MARKS = (_TENSOR, _PAIRS, _TUPLE, _TENSORS, _FLOAT)


def flatten_tree(tree: Tree, path: str = "") -> tuple[Json, Tensors]:
    """Extract the tensors from a nested state.

    Parameters
    ----------
    tree
        Mappings, lists, tuples and tensordicts of tensors, arrays, numbers, texts, booleans, None.
    path
        Prefix of the tensors' names.

    Returns
    -------
    tuple
        The state as JSON, with marks in place of tensors, and copies of the tensors by path.
    """
    tensors: Tensors = {}
    content = _encode(tree, path, tensors)
    copies = {name: each.to("cpu", copy=True).contiguous() for name, each in tensors.items()}
    return content, copies


def unflatten_tree(content: Json, tensors: Mapping[str, Tensor]) -> Tree:
    """Rebuild the input of :func:`flatten_tree` with these tensors, which are not copied."""
    if isinstance(content, list):
        return [unflatten_tree(item, tensors) for item in content]
    if not isinstance(content, dict):
        return content
    if len(content) == 1 and (mark := next(iter(content))) in _MARKS:
        return _decode_mark(mark, content[mark], tensors)
    return {name: unflatten_tree(item, tensors) for name, item in content.items()}


def save_tree(tree: Tree, directory: Path, name: str) -> None:
    """Write a nested state as ``NAME.json`` and ``NAME.safetensors`` into a folder."""
    tensors: Tensors = {}
    content = _encode(tree, "", tensors)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(_separate(tensors), directory / f"{name}.safetensors")
    text = json.dumps(content, sort_keys=True, indent=1)
    (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def load_tree(directory: Path, name: str, *, copy: bool = True) -> Tree:
    """Read the files of :func:`save_tree`.

    Without ``copy``, tensors are mapped: their pages are read on first use. The file must not
    change in the meantime; on local disks it may be deleted.
    """
    values, tensors = directory / f"{name}.json", directory / f"{name}.safetensors"
    for file in (values, tensors):
        if not file.is_file():
            raise CheckPointNotFoundError(f"no saved state in {directory}: {file.name} is missing.")
    try:
        mapped = load_file(tensors)
        if copy:
            mapped = {path: tensor.clone() for path, tensor in mapped.items()}
        return unflatten_tree(json.loads(values.read_text(encoding="utf-8")), mapped)
    except (ValueError, SafetensorError) as error:
        raise StateError(f"the state in {directory} is damaged: {error}.") from error


def _separate(tensors: Tensors) -> Tensors:
    """Return tensors in CPU memory, copied where they share storage, which can't be written."""
    separate: Tensors = {}
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        each = tensor.cpu().contiguous()
        address = each.untyped_storage().data_ptr()
        separate[name] = each.clone() if address in addresses else each
        addresses.add(address)
    return separate


def _encode(tree: Tree, path: str, tensors: Tensors) -> Json:
    if isinstance(tree, Tensor | np.ndarray):
        tensors[path] = torch.as_tensor(tree).detach()
        return {_TENSOR: path}
    if isinstance(tree, TensorDictBase):
        inner = {name: tree.get(name) for name in sorted(tree.keys())}
        batch = list(tree.batch_size)
        return {_TENSORS: [batch, _encode(inner, path, tensors)]}
    if isinstance(tree, Mapping):
        return _encode_mapping(tree, path, tensors)
    if isinstance(tree, tuple):
        return {_TUPLE: _encode(list(tree), path, tensors)}
    if isinstance(tree, list):
        return [_encode(item, f"{path}/{i}", tensors) for i, item in enumerate(tree)]
    return _encode_leaf(tree, path)


def _encode_mapping(tree: Mapping[Any, Any], path: str, tensors: Tensors) -> Json:
    items = [(name, _encode(item, f"{path}/{name}", tensors)) for name, item in tree.items()]
    if all(isinstance(name, str) for name in tree) and not (len(tree) == 1 and {*tree} & {*_MARKS}):
        return dict(items)
    pairs = []
    for name, item in items:
        if not isinstance(name, str | int | float | tuple):
            raise StateError(f"state: {path} has the key {name!r}, expected text or a number.")
        pairs.append([_encode(name, path, tensors), item])
    return {_PAIRS: pairs}


def _encode_leaf(leaf: object, path: str) -> Json:
    if isinstance(leaf, np.generic):
        leaf = leaf.item()
    if isinstance(leaf, float) and not np.isfinite(leaf):
        return {_FLOAT: repr(leaf)}
    if leaf is None or isinstance(leaf, bool | int | float | str):
        return leaf
    if isinstance(leaf, torch.Size):
        return list(leaf)
    if isinstance(leaf, torch.device | torch.dtype):
        return str(leaf)
    raise StateError(
        f"state: {path.lstrip('/')} is a {type(leaf).__module__}.{type(leaf).__qualname__}, which"
        " cannot be saved without pickle; expected tensors, arrays, numbers, texts, and lists or"
        " mappings of these. Make its state_dict() return those."
    )


def _decode_mark(mark: str, content: Json, tensors: Mapping[str, Tensor]) -> Tree:
    if mark == _TENSOR:
        if content not in tensors:
            raise StateError(f"state: the tensor {content!r} is missing. The state is damaged.")
        return tensors[content]
    if mark == _PAIRS:
        return {
            unflatten_tree(name, tensors): unflatten_tree(item, tensors) for name, item in content
        }
    if mark == _TUPLE:
        return tuple(unflatten_tree(content, tensors))
    if mark == _FLOAT:
        return float(content)
    from tensordict import TensorDict

    batch, inner = content
    return TensorDict(unflatten_tree(inner, tensors), batch_size=batch)
