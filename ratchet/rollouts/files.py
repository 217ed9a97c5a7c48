"""Nested dictionaries of arrays as Parquet files: no pickle, readable by anything.

One column a leaf (its key path with dots), one row an entry of the first batch dimension, lists
in it for further dimensions. The exact shapes and types are in the file's metadata. The same
content gives the same bytes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet.errors import DataError, RatchetError
from ratchet.rollouts.arrays import STRING, Array, dotted, dtype_name
from ratchet.rollouts.batch_index import Shape
from ratchet.rollouts.nested_array_dict import NestedArrayDict

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = 1
_METADATA_KEY = b"ratchet.nested_array_dict"
_TYPES = ("bool", "int64", "float16", "float32", "float64")


def save_nested_array_dict(nad: NestedArrayDict, path: Path | str) -> None:
    """Write a Parquet file atomically, in a folder made if need be."""
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
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # A dictionary of floats would fold all NaNs into one.
        pq.write_table(table, aside, compression="zstd", use_dictionary=False)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def load_nested_array_dict(path: Path | str) -> NestedArrayDict:
    """Read what :func:`save_nested_array_dict` wrote; equal to what was saved.

    Raises
    ------
    DataError
        If the file is missing, damaged or was not written by it.
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
        made = NestedArrayDict({}, tuple(description["batch_size"]))
        for leaf in description["leaves"]:
            made[tuple(leaf["path"])] = _leaf(
                table, tuple(leaf["path"]), leaf["type"], tuple(leaf["shape"])
            )
        for part in description["empty_parts"]:
            made[tuple(part)] = {}
    except (OSError, KeyError, TypeError, ValueError, RatchetError) as error:
        raise DataError(
            f"cannot read {path}: {error}. Expected a file written by save_nested_array_dict;"
            " make it again."
        ) from error
    return made


def _column(leaf: Array, inner: Shape) -> pa.Array[Any]:
    """Make a column of lists (of lists …) with the values of a leaf."""
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
