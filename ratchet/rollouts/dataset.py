"""Datasets of text and numbers: what ``TensorDictDataset`` is for tensors.

Scenarios make them; a stage saves them, environments gather from them.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ratchet.errors import DataError
from ratchet.rollouts.arrays import STRING, Array, dotted, dtype_name
from ratchet.rollouts.files import load_nested_array_dict, save_nested_array_dict
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.order import DataOrder

__all__ = ["DataOrder", "NestedArrayDictDataset"]

SCHEMA = 1
DATA_FILE = "dataset.parquet"
DESCRIPTION_FILE = "dataset.json"


class NestedArrayDictDataset:
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

    def __init__(self, data: NestedArrayDict) -> None:
        if data.batch_dims != 1 or len(data) == 0:
            raise DataError(
                f"dataset: got a NestedArrayDict of batch size {data.batch_size}, expected one"
                " leading dimension with at least one datapoint."
            )
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NestedArrayDictDataset):
            return NotImplemented
        return self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash[:16], 16)

    def __repr__(self) -> str:
        return f"NestedArrayDictDataset({len(self)} datapoints: {', '.join(self.fields)})"

    def __getitem__(self, key: str | tuple[str, ...]) -> Array:
        """Give one field, [N, ...]."""
        return self.data.array(key)

    @property
    def fields(self) -> list[str]:
        """The names of all fields, nested ones with dots, sorted."""
        return sorted(dotted(path) for path, _ in self.data.leaves())

    def gather(self, ids: npt.ArrayLike) -> NestedArrayDict:
        """Give the datapoints of these indices int64 [*B], as a batch [*B]."""
        return self.data[np.asarray(ids, dtype=np.int64)]

    def take(self, size: int | None) -> NestedArrayDictDataset:
        """Give the first ``size`` datapoints; all of them for None or when there are fewer."""
        if size is None or size >= len(self):
            return self
        return NestedArrayDictDataset(self.data[:size])

    @cached_property
    def hash(self) -> str:
        """SHA-256 of names, types, shapes and values: independent of file and process."""
        return content_hash(self.data)

    def save(self, directory: Path | str) -> None:
        """Write ``dataset.parquet`` and ``dataset.json`` into a folder, made if need be."""
        directory = Path(directory)
        save_nested_array_dict(self.data, directory / DATA_FILE)
        description = {"schema": SCHEMA, "num_datapoints": len(self), "hash": self.hash}
        (directory / DESCRIPTION_FILE).write_text(json.dumps(description, indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path | str, *, check: bool = True) -> NestedArrayDictDataset:
        """Read a saved dataset.

        Parameters
        ----------
        directory
            What was given to :meth:`save`.
        check
            Whether to compare its hash.

        Raises
        ------
        DataError
            If a file is missing or damaged.
        """
        directory = Path(directory)
        try:
            description = json.loads((directory / DESCRIPTION_FILE).read_text())
            schema, expected = description["schema"], description["hash"]
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"cannot read the dataset in {directory}: {error}. Expected {DESCRIPTION_FILE} and"
                f" {DATA_FILE} as written by NestedArrayDictDataset.save; make the dataset again."
            ) from error
        if schema != SCHEMA:
            raise DataError(f"{directory}: got dataset schema {schema!r}, expected {SCHEMA}.")
        dataset = cls(load_nested_array_dict(directory / DATA_FILE))
        if check and dataset.hash != expected:
            raise DataError(
                f"{directory}: the data's hash is {dataset.hash}, expected {expected}."
                " The files were changed or damaged; make the dataset again."
            )
        return dataset


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
