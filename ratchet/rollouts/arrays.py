"""The few types of arrays that rollouts are made of: text, int64, floats and booleans.

Below :class:`NestedArrayDict`, which takes in anything through :func:`as_leaf`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.dtypes import StringDType

from ratchet.errors import ArrayTypeError

Array: TypeAlias = npt.NDArray[Any]

STRING = StringDType(na_object=None)
"""Text of any length; None where there is none."""

_BOOL = np.dtype(np.bool_)
_INT = np.dtype(np.int64)
_FLOATS = frozenset(np.dtype(t) for t in (np.float16, np.float32, np.float64))
_AS_THEY_ARE = frozenset({STRING, _BOOL, _INT, *_FLOATS})
_EXPECTED = "text (str or None), integers, floats of 2 to 8 bytes or booleans"


def as_leaf(value: object, path: Sequence[str]) -> Array:
    """Turn a value into an array of one of the types kept.

    Parameters
    ----------
    value
        An array, a tensor on the CPU, nested lists, or a scalar. Arrays of a type that is kept
        are not copied.
    path
        Where it goes, for messages.

    Returns
    -------
    ndarray
        Text as ``STRING``, integers as int64; floats and booleans as they are.

    Raises
    ------
    ArrayTypeError
        If it holds anything else, is ragged, or has integers that int64 can't hold.
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
    """Make an array of zeros: 0, False, or None for text."""
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
    """Make text of strings and None; through objects, since ``U`` arrays drop trailing NULs."""
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
