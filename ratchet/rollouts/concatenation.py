"""Stack and concatenate nested dictionaries of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ratchet.errors import ArrayShapeError
from ratchet.rollouts.arrays import Array, Shape, check_alike, shape_like
from ratchet.rollouts.nested_array_dict import NestedArrayDict


def stack_nested_array_dicts(dicts: Sequence[NestedArrayDict], dim: int = 0) -> NestedArrayDict:
    """Stack dictionaries of the same batch size along a new batch dimension.

    Parameters
    ----------
    dicts
        At least one; all with the same batch size, key paths, types and shapes.
    dim
        Index of the new dimension among the batch dimensions; from the end if negative.
    """
    first = _first(dicts)
    axis = _dimension(dim, first.batch_dims + 1)
    for number, other in enumerate(dicts):
        _check_alike(first, other, number, free_dim=None)
    size = first.batch_size
    return _join(dicts, np.stack, axis, (*size[:axis], len(dicts), *size[axis:]))


def concatenate_nested_array_dicts(
    dicts: Sequence[NestedArrayDict], dim: int = 0
) -> NestedArrayDict:
    """Concatenate dictionaries along an existing batch dimension.

    Parameters
    ----------
    dicts
        At least one; all with the same key paths and types, and, apart from dimension ``dim``,
        the same shapes.
    dim
        A batch dimension; from the end if negative.
    """
    first = _first(dicts)
    axis = _dimension(dim, first.batch_dims)
    for number, other in enumerate(dicts):
        _check_alike(first, other, number, free_dim=axis)
    size = list(first.batch_size)
    size[axis] = sum(other.batch_size[axis] for other in dicts)
    return _join(dicts, np.concatenate, axis, tuple(size))


def _join(
    dicts: Sequence[NestedArrayDict],
    join: Callable[..., Array],
    axis: int,
    batch_size: Shape,
) -> NestedArrayDict:
    data: dict[str, Array | NestedArrayDict] = {}
    for name, value in dicts[0]._data.items():
        parts = [one._data[name] for one in dicts]
        if isinstance(value, NestedArrayDict):
            nested = [part for part in parts if isinstance(part, NestedArrayDict)]
            data[name] = _join(nested, join, axis, batch_size)
        else:
            data[name] = join(parts, axis=axis)
    return NestedArrayDict._make(data, batch_size, dicts[0]._path)


def _check_alike(
    first: NestedArrayDict, other: NestedArrayDict, number: int, *, free_dim: int | None
) -> None:
    expected = shape_like(first.batch_size, other.batch_size, free_dim)
    if other.batch_size != expected:
        raise ArrayShapeError(
            f"number {number} has batch size {other.batch_size}, which does not match"
            f" {first.batch_size}, that of number 0."
        )
    where = f"number {number} against number 0"
    check_alike(dict(first.leaves()), dict(other.leaves()), where, free_dim=free_dim)


def _first(dicts: Sequence[NestedArrayDict]) -> NestedArrayDict:
    if not dicts:
        raise ArrayShapeError("got no NestedArrayDict to join, expected at least one.")
    return dicts[0]


def _dimension(dim: int, num_dims: int) -> int:
    if not -num_dims <= dim < num_dims:
        raise ArrayShapeError(
            f"dim: got {dim}, expected a batch dimension from {-num_dims} to {num_dims - 1}."
        )
    return dim % num_dims
