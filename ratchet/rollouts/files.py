"""Files of rollouts, without pickle: Parquet for nested arrays, safetensors for tensors.

In Parquet, a leaf is a column named by its key path with dots, an entry of the first batch
dimension is a row, and further dimensions are lists. Exact shapes and types are in the file's
metadata. The same content gives the same bytes. Names in safetensors are joined by slashes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet.errors import CheckPointNotFoundError, DataError, RatchetError
from ratchet.rollouts.arrays import STRING, Array, Shape, dotted, dtype_name
from ratchet.rollouts.nested_array_dict import NestedArrayDict

if TYPE_CHECKING:
    import pyarrow as pa
    from tensordict import TensorDict, TensorDictBase

SCHEMA = 1
_METADATA_KEY = b"ratchet.nested_array_dict"
_TYPES = ("bool", "int64", "float16", "float32", "float64")

_SEPARATOR = "/"
_ABOUT = "about"
_BATCH_SIZE = "batch_size"


def save_nested_array_dict(nad: NestedArrayDict, path: Path | str) -> None:
    """Write a Parquet file atomically; create its folder if missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    leaves = dict(sorted(nad.leaves()))
    num_rows = nad.batch_size[0] if nad.batch_size else 1
    names, columns = [], []
    for key, leaf in leaves.items():
        inner = leaf.shape[1:] if nad.batch_size else leaf.shape
        if 0 not in inner:  # such a leaf has no values; the metadata say all about it
            names.append(dotted(key))
            columns.append(_column(leaf, inner))
    description = {
        "schema": SCHEMA,
        "batch_size": nad.batch_size,
        "num_rows": num_rows,
        "leaves": [
            {"path": key, "type": dtype_name(leaf.dtype), "shape": leaf.shape}
            for key, leaf in leaves.items()
        ],
        "empty_parts": sorted(
            (key,) if isinstance(key, str) else key
            for key, value in nad.items(include_nested=True)
            if isinstance(value, NestedArrayDict) and not value.keys()
        ),
    }
    metadata = {_METADATA_KEY: json.dumps(description, sort_keys=True).encode()}
    table = pa.Table.from_arrays(columns, names=names).replace_schema_metadata(metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary_file = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # A dictionary of floats would fold all NaNs into one.
        pq.write_table(table, temporary_file, compression="zstd", use_dictionary=False)
        temporary_file.replace(path)
    finally:
        temporary_file.unlink(missing_ok=True)


def load_nested_array_dict(path: Path | str) -> NestedArrayDict:
    """Load a file of :func:`save_nested_array_dict`; equal to the saved dictionary.

    Raises
    ------
    DataError
        If the file is missing, damaged or of another format.
    """
    import pyarrow.parquet as pq

    path = Path(path)
    try:
        table = pq.read_table(path, partitioning=None)
        metadata = (table.schema.metadata or {}).get(_METADATA_KEY)
        if metadata is None:
            raise DataError("it is Parquet without Ratchet's description of the arrays")
        description = json.loads(metadata)
        if description["schema"] != SCHEMA:
            raise DataError(f"got schema {description['schema']!r}, expected {SCHEMA}")
        array_dict = NestedArrayDict({}, tuple(description["batch_size"]))
        for leaf in description["leaves"]:
            array_dict[tuple(leaf["path"])] = _leaf(
                table, tuple(leaf["path"]), leaf["type"], tuple(leaf["shape"])
            )
        for part in description["empty_parts"]:
            array_dict[tuple(part)] = {}
    except (OSError, KeyError, TypeError, ValueError, RatchetError) as error:
        raise DataError(
            f"cannot read {path}: {error}. Expected a file written by save_nested_array_dict;"
            " make it again."
        ) from error
    return array_dict


def _column(leaf: Array, inner: Shape) -> pa.Array[Any]:
    """Create a column of lists (of lists …) with the values of a leaf."""
    import pyarrow as pa

    flat = np.ascontiguousarray(leaf).reshape(-1)
    column: pa.Array[Any]
    if leaf.dtype == STRING:
        column = pa.array(flat.tolist(), type=pa.large_string())
    else:
        column = pa.array(flat)
    for size in reversed(inner):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _leaf(table: pa.Table, path: tuple[str, ...], type_name: str, shape: Shape) -> Array:
    if type_name != "str" and type_name not in _TYPES:
        raise DataError(f"{dotted(path)}: got the type {type_name!r}, expected str or {_TYPES}")
    dtype = STRING if type_name == "str" else np.dtype(type_name)
    if 0 in shape:
        return np.empty(shape, dtype=dtype)
    column: Any = table.column(dotted(path)).combine_chunks()
    while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        column = column.flatten()
    if dtype == STRING:
        return np.array(column.to_pylist(), dtype=object).astype(STRING).reshape(shape)
    array: Array = column.to_numpy(zero_copy_only=False)
    return np.array(array, dtype=dtype).reshape(shape)


def save_rollouts(
    rollouts: TensorDictBase, path: str | Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write rollouts ``[E, T]`` into a file, overwriting it.

    ``metadata`` contains further metadata, e.g. the agents' names; see :func:`read_about`.
    """
    from safetensors.torch import save_file

    tensors = {}
    for key in rollouts.keys(include_nested=True, leaves_only=True):
        names = (key,) if isinstance(key, str) else key
        if any(_SEPARATOR in name for name in names):
            raise DataError(f"rollouts: a name in {names} contains {_SEPARATOR!r}, expected none.")
        tensors[_SEPARATOR.join(names)] = rollouts.get(key).detach().cpu().contiguous().clone()
    size = json.dumps(list(rollouts.batch_size))
    # One entry only: safetensors writes several in any order, and the same would differ in bytes.
    described = json.dumps({**(metadata or {}), _BATCH_SIZE: size}, sort_keys=True)
    save_file(tensors, path, metadata={_ABOUT: described})


def load_rollouts(path: str | Path) -> TensorDict:
    """Load a file of :func:`save_rollouts`, with the same names, numbers and types."""
    from safetensors.torch import load_file
    from tensordict import TensorDict

    size = json.loads(read_about(path, _BATCH_SIZE))
    rollouts = TensorDict({}, batch_size=size)
    for name, tensor in load_file(path).items():
        rollouts.set(tuple(name.split(_SEPARATOR)), tensor)
    return rollouts


def read_about(path: str | Path, name: str) -> str:
    """Read one entry of the metadata of saved rollouts."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise CheckPointNotFoundError(f"{path}: no such file, expected rollouts.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get(_ABOUT, "{}"))
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{path}: not a file of rollouts ({error}).") from error
    if name not in metadata:
        raise DataError(f"{path}: no metadata {name!r}, expected one of {sorted(metadata)}.")
    return str(metadata[name])
