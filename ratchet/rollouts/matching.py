"""Checks that the arrays of nested dictionaries fit together; messages name the key path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from ratchet.errors import ArrayShapeError, ArrayTypeError, KeyPathError
from ratchet.rollouts.arrays import STRING, Array, dotted, dtype_name
from ratchet.rollouts.batch_index import Shape

Leaves: TypeAlias = Mapping[tuple[str, ...], Array]


def shape_like(like: Shape, shape: Shape, free_dim: int | None) -> Shape:
    """Return the shape ``like``, with the size that ``shape`` has in one free dimension."""
    if free_dim is None or free_dim >= min(len(like), len(shape)):
        return like
    return (*like[:free_dim], shape[free_dim], *like[free_dim + 1 :])


def check_same_paths(first: Leaves, second: Leaves, what: str) -> None:
    """Check that both have arrays at the same key paths.

    Raises
    ------
    KeyPathError
        Naming the paths that are on one side only.
    """
    if first.keys() != second.keys():
        odd = sorted(dotted(path) for path in first.keys() ^ second.keys())
        raise KeyPathError(
            f"{what}: {', '.join(odd)} is on one side only, expected the same key paths on both."
        )


def check_alike(first: Leaves, second: Leaves, what: str, *, free_dim: int | None) -> None:
    """Check key paths, types and shapes, apart from the size of one dimension.

    Raises
    ------
    KeyPathError, ArrayTypeError, ArrayShapeError
        Naming the first key path where they differ.
    """
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
    """Check that an array can be written to a place of this shape and type.

    Raises
    ------
    ArrayShapeError, ArrayTypeError
        If not; an integer goes where floats are, but not the other way round.
    """
    if leaf.shape != shape:
        raise ArrayShapeError(f"{dotted(path)}: got shape {leaf.shape}, expected {shape}.")
    text = STRING in (leaf.dtype, dtype)
    if leaf.dtype != dtype and (text or not np.can_cast(leaf.dtype, dtype, "same_kind")):
        raise ArrayTypeError(
            f"{dotted(path)}: got {dtype_name(leaf.dtype)}, expected {dtype_name(dtype)}."
        )
