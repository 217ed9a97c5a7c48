"""A nested dictionary of NumPy arrays that share leading batch dimensions.

Text scenarios use it as tensor scenarios use TensorDict: for observations, actions, rollouts and
datasets. Arrays are shared, not copied, unless :meth:`NestedArrayDict.clone`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeGuard, overload

import numpy as np

from ratchet.errors import ArrayShapeError, KeyPathError, nearest
from ratchet.rollouts.arrays import (
    STRING,
    Array,
    Shape,
    as_leaf,
    check_fits,
    check_same_paths,
    dotted,
    dtype_name,
    read_index,
    same_array,
    zeros,
)

__all__ = ["STRING", "NestedArrayDict"]


class NestedArrayDict:
    """Nested mapping of names to arrays, all with the same leading dimensions.

    Parameters
    ----------
    data
        Arrays (or values convertible to one, see :func:`~ratchet.rollouts.arrays.as_leaf`) and
        further mappings by name.

    Raises
    ------
    ArrayShapeError
        If an array's shape doesn't start with ``batch_size``; with its key path.
    ArrayTypeError
        If a value is neither text nor numbers nor a mapping.
    """

    __slots__ = ("_batch_size", "_data", "_path")
    __hash__ = None  # type: ignore[assignment]  # it changes

    def __init__(self, data: Mapping[str, Any], batch_size: int | Sequence[int]) -> None:
        self._batch_size: Shape = (
            (batch_size,) if isinstance(batch_size, int) else tuple(int(n) for n in batch_size)
        )
        if min(self._batch_size, default=0) < 0:
            raise ArrayShapeError(f"batch size: got {self._batch_size}, expected no negative size.")
        self._path: tuple[str, ...] = ()
        self._data: dict[str, Array | NestedArrayDict] = {}
        for name, value in data.items():
            self._set(name, value)

    @classmethod
    def _make(
        cls, data: dict[str, Array | NestedArrayDict], batch_size: Shape, path: tuple[str, ...]
    ) -> NestedArrayDict:
        """Create a dictionary of parts without checks."""
        array_dict = cls.__new__(cls)
        array_dict._data, array_dict._batch_size, array_dict._path = data, batch_size, path
        return array_dict

    @classmethod
    def zeros_like(cls, other: NestedArrayDict) -> NestedArrayDict:
        """Create zeros, False and None with another dictionary's names, shapes and types."""
        return other._map(lambda leaf: zeros(leaf.shape, leaf.dtype), other._batch_size)

    @classmethod
    def from_arrays_and_scalars(
        cls,
        array_and_scalars: Sequence[Any],
        tuple_keys: Sequence[str | tuple[str, ...]],
        batch_size: int | Sequence[int],
    ) -> NestedArrayDict:
        """Create a dictionary of arrays and their key paths, in the same order."""
        array_dict = cls({}, batch_size)
        for path, value in zip(tuple_keys, array_and_scalars, strict=True):
            array_dict[path] = value
        return array_dict

    @property
    def batch_size(self) -> Shape:
        """The leading dimensions that all arrays share."""
        return self._batch_size

    @property
    def batch_dims(self) -> int:
        """The number of leading dimensions that all arrays share."""
        return len(self._batch_size)

    def __len__(self) -> int:
        """Return the size of the first batch dimension."""
        if not self._batch_size:
            raise TypeError("a NestedArrayDict without batch dimensions has no length.")
        return self._batch_size[0]

    def __iter__(self) -> Iterator[NestedArrayDict]:
        """Walk along the first batch dimension."""
        return (self[row] for row in range(len(self)))

    def __contains__(self, path: object) -> bool:
        """Return whether there is something at a key path."""
        node: object = self
        for name in path if isinstance(path, tuple) else (path,):
            if not isinstance(node, NestedArrayDict) or name not in node._data:
                return False
            node = node._data[name]
        return True

    # A key path gives an array or a part, so its type is open; see ``array`` and ``nested``.
    @overload
    def __getitem__(self, key: str | tuple[str, ...]) -> Any: ...  # noqa: ANN401
    @overload
    def __getitem__(self, key: object) -> NestedArrayDict: ...
    def __getitem__(self, key: object) -> Any:
        """Return the array or nested part at a key path, or the same arrays at a batch index.

        Parameters
        ----------
        key
            A name or tuple of names; or an integer, slice, mask, index array or a tuple of those
            over the batch dimensions. Changes to a nested part apply to this dictionary.

        Raises
        ------
        KeyPathError
            If the key path doesn't exist; with the nearest name.
        BatchIndexError
            If the index doesn't fit the batch dimensions.
        """
        if isinstance(key, str):
            part = self._data.get(key)
            return part if part is not None else self._missing((key,))
        if _is_key_path(key):
            return self._find(key)
        index, batch_size = read_index(key, self._batch_size)
        return self._map(lambda leaf: leaf[index], batch_size)

    def __setitem__(self, key: object, value: Any) -> None:  # noqa: ANN401 -- an array or what can be one
        """Set an array or mapping at a key path, or write values at a batch index in place.

        Parameters
        ----------
        key
            As for reading. Missing parts of a key path are created.
        value
            An array that starts with the batch dimensions, or a mapping of such; for an index a
            NestedArrayDict with the same key paths and the batch size that the index gives.
        """
        if isinstance(key, str):
            self._set(key, value)
        elif _is_key_path(key):
            self._make_parts(key[:-1])._set(key[-1], value)
        else:
            self._write(key, value)

    def __delitem__(self, key: str | tuple[str, ...]) -> None:
        """Remove a key path."""
        path = (key,) if isinstance(key, str) else tuple(key)
        self._find(path)
        del self._find(path[:-1])._data[path[-1]]

    def array(self, key: str | tuple[str, ...]) -> Array:
        """Return the array at a key path."""
        part = self[key]
        if isinstance(part, NestedArrayDict):
            names = ", ".join(part._data) or "nothing"
            raise KeyPathError(
                f"{self._dotted(key)}: got a nested part with {names}, expected an array."
            )
        array: Array = part
        return array

    def nested(self, key: str | tuple[str, ...]) -> NestedArrayDict:
        """Return the nested part at a key path."""
        part = self[key]
        if not isinstance(part, NestedArrayDict):
            raise KeyPathError(
                f"{self._dotted(key)}: got an array of shape {part.shape}, expected a nested part."
            )
        return part

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """List the names; nested ones as tuples.

        ``include_nested`` includes names in nested parts; ``leaves_only`` omits the names of nested
        parts themselves.
        """
        return [key for key, _ in self.items(include_nested, leaves_only)]

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """List arrays and nested parts, in the order of :meth:`keys`."""
        return [value for _, value in self.items(include_nested, leaves_only)]

    def items(
        self, include_nested: bool = False, leaves_only: bool = False
    ) -> list[tuple[Any, Any]]:
        """List names with arrays and nested parts; see :meth:`keys`."""
        items: list[tuple[Any, Any]] = []
        for name, value in self._data.items():
            if not (leaves_only and isinstance(value, NestedArrayDict)):
                items.append((name, value))
            if include_nested and isinstance(value, NestedArrayDict):
                for key, inner in value.items(True, leaves_only):
                    items.append(((name, *_as_tuple(key)), inner))
        return items

    def leaves(self) -> list[tuple[tuple[str, ...], Array]]:
        """List all arrays with their whole key paths, in order of insertion."""
        return [(_as_tuple(key), value) for key, value in self.items(True, True)]

    def leaf_keys(self) -> list[tuple[str, ...]]:
        """List the whole key paths of all arrays."""
        return [path for path, _ in self.leaves()]

    def key_is_leaf(self, key: str | tuple[str, ...]) -> bool:
        """Return whether there is an array at a key path, rather than a nested part.

        Raises KeyPathError if there is nothing.
        """
        return not isinstance(self[key], NestedArrayDict)

    def update(self, other: Mapping[str, Any] | NestedArrayDict) -> NestedArrayDict:
        """Add all entries of another mapping; nested parts are merged. Returns itself."""
        for name, value in other.items():
            here = self._data.get(name)
            if isinstance(here, NestedArrayDict) and isinstance(value, Mapping | NestedArrayDict):
                here.update(value)
            else:
                self._set(name, value)
        return self

    def select(self, *keys: str | tuple[str, ...]) -> NestedArrayDict:
        """Return a new one with these key paths only; arrays are shared."""
        array_dict = NestedArrayDict({}, self._batch_size)
        for key in keys:
            array_dict[key] = self[key]
        return array_dict

    def clone(self) -> NestedArrayDict:
        """Copy, arrays included."""
        return self._map(lambda leaf: leaf.copy(), self._batch_size)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries of the same arrays."""
        return {
            name: value.to_dict() if isinstance(value, NestedArrayDict) else value
            for name, value in self._data.items()
        }

    def __eq__(self, other: object) -> bool:
        """Return whether batch size, names, types, shapes and values are the same.

        NaN is the same as NaN; the order of names does not matter.
        """
        if not isinstance(other, NestedArrayDict):
            return NotImplemented
        if self._batch_size != other._batch_size or self._data.keys() != other._data.keys():
            return False
        for name, mine in self._data.items():
            theirs = other._data[name]
            if isinstance(mine, NestedArrayDict) or isinstance(theirs, NestedArrayDict):
                if type(mine) is not type(theirs) or mine != theirs:
                    return False
            elif not same_array(mine, theirs):
                return False
        return True

    def __repr__(self) -> str:
        return f"NestedArrayDict(batch_size={self._batch_size})" + self._tree("  ")

    def _tree(self, indent: str) -> str:
        if not self._data:
            return " {}"
        lines = [
            f"{indent}{name}:{value._tree(indent + '  ')}"
            if isinstance(value, NestedArrayDict)
            else f"{indent}{name}: {dtype_name(value.dtype)} {value.shape}"
            for name, value in self._data.items()
        ]
        return "\n" + "\n".join(lines)

    def _set(self, name: str, value: Any) -> None:  # noqa: ANN401 -- an array or what can be one
        if not isinstance(name, str) or not name or "." in name:
            raise KeyPathError(
                f"{self._dotted(())}: got the name {name!r}, expected a text without dots."
            )
        path = (*self._path, name)
        if type(value) is not np.ndarray and isinstance(value, Mapping | NestedArrayDict):
            part = NestedArrayDict._make({}, self._batch_size, path)
            for inner, inner_value in value.items():
                part._set(inner, inner_value)
            self._data[name] = part
            return
        leaf = as_leaf(value, path)
        if leaf.shape[: len(self._batch_size)] != self._batch_size:
            raise ArrayShapeError(
                f"{dotted(path)}: got shape {leaf.shape}, expected it to start with the batch size"
                f" {self._batch_size}."
            )
        self._data[name] = leaf

    def _write(self, key: object, value: object) -> None:
        """Write in place, after everything was checked."""
        index, batch_size = read_index(key, self._batch_size)
        if not isinstance(value, NestedArrayDict) or value._batch_size != batch_size:
            got = getattr(value, "batch_size", type(value).__name__)
            raise ArrayShapeError(
                f"writing at {key!r}: got {got}, expected a NestedArrayDict of batch size"
                f" {batch_size}."
            )
        mine, theirs = dict(self.leaves()), dict(value.leaves())
        check_same_paths(mine, theirs, f"writing at {key!r}")
        for path, leaf in mine.items():
            expected = batch_size + leaf.shape[len(self._batch_size) :]
            check_fits(theirs[path], expected, leaf.dtype, path)
        for path, leaf in mine.items():
            leaf[index] = theirs[path]

    def _find(self, path: tuple[str, ...]) -> Any:  # noqa: ANN401 -- an array or a part
        node: Array | NestedArrayDict = self
        for depth, name in enumerate(path):
            if not isinstance(node, NestedArrayDict):
                raise KeyPathError(
                    f"{self._dotted(path)}: {self._dotted(path[:depth])} is an array of shape"
                    f" {node.shape}, expected a nested part."
                )
            if name not in node._data:
                node._missing((name,))
            node = node._data[name]
        return node

    def _make_parts(self, path: tuple[str, ...]) -> NestedArrayDict:
        part = self
        for name in path:
            if name not in part._data:
                part._set(name, {})
            inner = part._data[name]
            if not isinstance(inner, NestedArrayDict):
                raise KeyPathError(
                    f"{part._dotted(name)}: is an array of shape {inner.shape}, so nothing can be"
                    " put below it."
                )
            part = inner
        return part

    def _missing(self, path: tuple[str, ...]) -> NoReturn:
        raise KeyPathError(
            f"{self._dotted(path)}: there is nothing at this key path."
            f"{nearest(path[-1], self._data)}"
        )

    def _map(self, change: Callable[[Array], Array], batch_size: Shape) -> NestedArrayDict:
        """Change every array; the caller vouches for the new batch size."""
        data: dict[str, Array | NestedArrayDict] = {
            name: value._map(change, batch_size)
            if isinstance(value, NestedArrayDict)
            else change(value)
            for name, value in self._data.items()
        }
        return NestedArrayDict._make(data, batch_size, self._path)

    def _dotted(self, path: str | tuple[str, ...]) -> str:
        return dotted((*self._path, *_as_tuple(path))) or "NestedArrayDict"


def _is_key_path(key: object) -> TypeGuard[tuple[str, ...]]:
    return isinstance(key, tuple) and bool(key) and isinstance(key[0], str)


def _as_tuple(key: str | tuple[str, ...]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key
