"""Indices over the batch dimensions, read once for all leaves of a nested dictionary."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ratchet.errors import BatchIndexError

Shape: TypeAlias = tuple[int, ...]

_ONE = np.zeros((), dtype=np.bool_)
_KINDS = (int, np.integer, slice, np.ndarray, type(None), type(Ellipsis))


def read_index(index: object, batch_size: Shape) -> tuple[tuple[Any, ...], Shape]:
    """Check an index and find the batch size after it.

    Parameters
    ----------
    index
        What NumPy knows: an integer, slice, mask, index array or list, None, Ellipsis, or a
        tuple of those.

    Returns
    -------
    tuple
        An index that every leaf takes, whatever dimensions it has after the batch, and gives an
        array for, never a scalar; and the batch size after it.

    Raises
    ------
    BatchIndexError
        If it has another type, too many dimensions, or is out of range.
    """
    if type(index) is int and batch_size:
        size = batch_size[0]
        if not -size <= index < size:
            raise BatchIndexError(f"index {index} is out of range for batch size {batch_size}.")
        return (index, Ellipsis), batch_size[1:]
    parts = tuple(map(_read_part, index if isinstance(index, tuple) else (index,)))
    parts = (*_without_ellipsis(parts, len(batch_size)), Ellipsis)
    try:
        shape = np.broadcast_to(_ONE, batch_size)[parts].shape
    except IndexError as error:
        raise BatchIndexError(
            f"index {index!r} does not fit the batch size {batch_size}: {error}."
        ) from error
    return parts, shape


def _read_part(part: object) -> Any:  # noqa: ANN401 -- one of the kinds of index
    if isinstance(part, list | range):
        array = np.asarray(part)
        part = array if array.size else array.astype(np.int64)
    elif not isinstance(part, _KINDS) and hasattr(part, "__array__"):
        part = np.asarray(part)
    if isinstance(part, np.ndarray) and part.dtype.kind in "bui":
        return part
    if isinstance(part, np.ndarray | bool) or not isinstance(part, _KINDS):
        raise BatchIndexError(
            f"got {part!r} as an index, expected a key path of names, or integers, slices, masks"
            " and index arrays over the batch dimensions."
        )
    return part


def _without_ellipsis(parts: tuple[Any, ...], num_dims: int) -> tuple[Any, ...]:
    """Write an Ellipsis out, so that it stops at the batch dimensions."""
    places = [place for place, part in enumerate(parts) if part is Ellipsis]
    if not places:
        return parts
    if len(places) > 1:
        raise BatchIndexError("an index can have only one Ellipsis.")
    used = sum(
        part.ndim if isinstance(part, np.ndarray) and part.dtype.kind == "b" else 1
        for part in parts
        if part is not None and part is not Ellipsis
    )
    place = places[0]
    filling = (slice(None),) * max(num_dims - used, 0)
    return (*parts[:place], *filling, *parts[place + 1 :])
