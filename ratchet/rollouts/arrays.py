"""Arrays of rollouts: the supported types, indices into batches, and checks that arrays match.

The types are text, int64, floats and booleans; :func:`as_leaf` converts values to them.
:class:`NestedArrayDict` is built on this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.dtypes import StringDType

from ratchet.errors import ArrayShapeError, ArrayTypeError, BatchIndexError, KeyPathError

Array: TypeAlias = npt.NDArray[Any]

STRING = StringDType(na_object=None)
"""Text of any length; None for missing text."""

_BOOL = np.dtype(np.bool_)
_INT = np.dtype(np.int64)
_FLOATS = frozenset(np.dtype(t) for t in (np.float16, np.float32, np.float64))
_AS_THEY_ARE = frozenset({STRING, _BOOL, _INT, *_FLOATS})
_EXPECTED = "text (str or None), integers, floats of 2 to 8 bytes or booleans"

Shape: TypeAlias = tuple[int, ...]
_ONE = np.zeros((), dtype=np.bool_)
_KINDS = (int, np.integer, slice, np.ndarray, type(None), type(Ellipsis))
Leaves: TypeAlias = Mapping[tuple[str, ...], Array]


def as_leaf(value: object, path: Sequence[str]) -> Array:
    """Convert a value to an array of one of the supported types.

    Parameters
    ----------
    value
        An array, a tensor on the CPU, nested lists, or a scalar. Arrays of a supported type are not
        copied.
    path
        Its key path, for messages.

    Returns
    -------
    ndarray
        Text as ``STRING``, integers as int64; floats and booleans unchanged.
    """
    if type(value) is np.ndarray and value.dtype in _AS_THEY_ARE:
        return value
    if value is None or isinstance(value, str):
        return _text(value, path)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ArrayTypeError(
            f"{dotted(path)}: cannot make an array of a {type(value).__name__}: {error}."
            f" Expected {_EXPECTED}, all rows of one length."
        ) from error
    dtype = array.dtype
    if dtype.kind in "UOT":
        return _text(value if dtype.kind == "U" else array, path)
    if dtype.kind in "iu":
        if dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise ArrayTypeError(f"{dotted(path)}: got {array.max()}, which int64 can't hold.")
        return array.astype(_INT, copy=False)
    native = dtype.newbyteorder("=")
    if native in _AS_THEY_ARE:
        return array.astype(native, copy=False)
    raise ArrayTypeError(f"{dotted(path)}: got an array of {dtype}, expected {_EXPECTED}.")


def zeros(shape: Sequence[int], dtype: object) -> Array:
    """Create an array of zeros: 0, False, or None for text."""
    if dtype == STRING:
        return np.full(tuple(shape), None, dtype=STRING)
    return np.zeros(tuple(shape), dtype=dtype)  # type: ignore[call-overload, no-any-return]


def same_array(first: Array, second: Array) -> bool:
    """Return whether type, shape and values are the same; NaN is the same as NaN."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.dtype == STRING:  # NumPy holds None and "" for equal
        return bool(first.tolist() == second.tolist())
    return bool(np.array_equal(first, second, equal_nan=first.dtype.kind == "f"))


def dtype_name(dtype: object) -> str:
    """Return the short name of a type: ``str``, ``int64``, ``float32``, ``bool``."""
    return "str" if dtype == STRING else str(dtype)


def dotted(path: Sequence[str]) -> str:
    """Write a key path down for messages and column names."""
    return ".".join(path)


def _text(value: object, path: Sequence[str]) -> Array:
    """Convert strings and None to text; through objects, since ``U`` arrays drop trailing NULs."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "UT":
        return value.astype(STRING)
    objects = np.asarray(value, dtype=object)
    for item in objects.flat:
        if item is not None and not isinstance(item, str):
            raise ArrayTypeError(
                f"{dotted(path)}: got {item!r} of type {type(item).__name__} among text,"
                f" expected {_EXPECTED}, not mixed."
            )
    try:
        return objects.astype(STRING)
    except UnicodeEncodeError as error:
        raise ArrayTypeError(
            f"{dotted(path)}: the text {error.object!r} is no valid Unicode (a lone surrogate at"
            f" {error.start}). Replace it before it is stored."
        ) from error


def read_index(index: object, batch_size: Shape) -> tuple[tuple[Any, ...], Shape]:
    """Check an index and return the batch size that it results in.

    Parameters
    ----------
    index
        Any NumPy index: an integer, slice, mask, index array or list, None, Ellipsis, or a tuple of
        those.

    Returns
    -------
    tuple
        An index that applies to every leaf, regardless of its dimensions after the batch, and that
        results in an array, never a scalar; and the resulting batch size.
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
    positions = [index for index, part in enumerate(parts) if part is Ellipsis]
    if not positions:
        return parts
    if len(positions) > 1:
        raise BatchIndexError("an index can have only one Ellipsis.")
    used = sum(
        part.ndim if isinstance(part, np.ndarray) and part.dtype.kind == "b" else 1
        for part in parts
        if part is not None and part is not Ellipsis
    )
    index = positions[0]
    filling = (slice(None),) * max(num_dims - used, 0)
    return (*parts[:index], *filling, *parts[index + 1 :])


def shape_like(like: Shape, shape: Shape, free_dim: int | None) -> Shape:
    """Return the shape ``like``, with the size that ``shape`` has in one free dimension."""
    if free_dim is None or free_dim >= min(len(like), len(shape)):
        return like
    return (*like[:free_dim], shape[free_dim], *like[free_dim + 1 :])


def check_same_paths(first: Leaves, second: Leaves, what: str) -> None:
    """Check that both have arrays at the same key paths."""
    if first.keys() != second.keys():
        odd = sorted(dotted(path) for path in first.keys() ^ second.keys())
        raise KeyPathError(
            f"{what}: {', '.join(odd)} is on one side only, expected the same key paths on both."
        )


def check_alike(first: Leaves, second: Leaves, what: str, *, free_dim: int | None) -> None:
    """Check key paths, types and shapes, apart from the size of one dimension."""
    check_same_paths(first, second, what)
    for path, leaf in second.items():
        like = first[path]
        if leaf.dtype != like.dtype:
            raise ArrayTypeError(
                f"{dotted(path)}: {what}: got {dtype_name(leaf.dtype)}, expected"
                f" {dtype_name(like.dtype)}."
            )
        expected = shape_like(like.shape, leaf.shape, free_dim)
        if leaf.shape != expected:
            raise ArrayShapeError(
                f"{dotted(path)}: {what}: got shape {leaf.shape}, expected {expected}."
            )


def check_fits(leaf: Array, shape: Shape, dtype: np.dtype[Any], path: tuple[str, ...]) -> None:
    """Check that an array can be written to a place of this shape and type."""
    if leaf.shape != shape:
        raise ArrayShapeError(f"{dotted(path)}: got shape {leaf.shape}, expected {shape}.")
    text = STRING in (leaf.dtype, dtype)
    if leaf.dtype != dtype and (text or not np.can_cast(leaf.dtype, dtype, "same_kind")):
        raise ArrayTypeError(
            f"{dotted(path)}: got {dtype_name(leaf.dtype)}, expected {dtype_name(dtype)}."
        )
