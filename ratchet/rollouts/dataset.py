"""Datasets of text and numbers: what ``TensorDictDataset`` is for tensors.

Scenarios make them; a stage saves them, environments gather from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, overload

import numpy as np
import numpy.typing as npt

from ratchet.errors import DataError, RenamedAttributes
from ratchet.rollouts.arrays import STRING, Array, dotted, dtype_name
from ratchet.rollouts.files import load_nested_array_dict, save_nested_array_dict
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.order import DataOrder
from ratchet.rollouts.stored_dataset import StoredDataset

__all__ = ["DataOrder", "NestedArrayDictDataset"]


class NestedArrayDictDataset(RenamedAttributes, StoredDataset):
    """Datapoints with a common leading dimension; a value, never changed.

    Parameters
    ----------
    data
        Batch size [N].

    Raises
    ------
    DataError
        If there is no leading dimension, or no datapoint.
    """

    renamed_attributes: ClassVar[Mapping[str, str]] = {"keys": "the names are dataset.fields"}
    data_file: ClassVar[str] = "dataset.parquet"

    def __init__(self, data: NestedArrayDict) -> None:
        if data.batch_dims != 1 or len(data) == 0:
            raise DataError(
                f"dataset: got a NestedArrayDict of batch size {data.batch_size}, expected one"
                " leading dimension with at least one datapoint."
            )
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @overload
    def __getitem__(self, key: str | tuple[str, ...]) -> Array: ...
    @overload
    def __getitem__(self, key: int | slice | list[int] | npt.NDArray[Any]) -> NestedArrayDict: ...
    def __getitem__(self, key: Any) -> Any:
        """Return one field, [N, ...], or the datapoints of some indices with all fields."""
        if isinstance(key, str | tuple):
            return self.data.array(key)
        return self.data[key if isinstance(key, int | slice) else np.asarray(key)]

    @property
    def fields(self) -> list[str]:
        """The names of all fields, nested ones with dots, sorted."""
        return sorted(dotted(path) for path, _ in self.data.leaves())

    def gather(self, ids: npt.ArrayLike) -> NestedArrayDict:
        """Return the datapoints of these indices int64 [*B], as a batch [*B]."""
        return self.data[np.asarray(ids, dtype=np.int64)]

    def take(self, size: int | None) -> NestedArrayDictDataset:
        """Return the first ``size`` datapoints; all of them for None or when there are fewer."""
        if size is None or size >= len(self):
            return self
        return NestedArrayDictDataset(self.data[:size])

    def _hash_content(self) -> str:
        return content_hash(self.data)

    def _save_data(self, file: Path) -> None:
        save_nested_array_dict(self.data, file)

    @classmethod
    def _load_data(cls, file: Path, size: int) -> Self:
        return cls(load_nested_array_dict(file))


def content_hash(data: NestedArrayDict) -> str:
    """Hash names, types, shapes and values with SHA-256; the order of names does not matter."""
    digest = hashlib.sha256()
    for path, leaf in sorted(data.leaves(), key=lambda item: item[0]):
        header = json.dumps([path, dtype_name(leaf.dtype), leaf.shape])
        digest.update(header.encode())
        if leaf.dtype == STRING:
            digest.update(json.dumps(leaf.tolist(), ensure_ascii=False).encode())
        else:
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()
