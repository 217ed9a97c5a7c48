"""Datasets identified by content, datasets of nested arrays, and the order of datapoints.

A saved dataset is a folder: a data file, and ``dataset.json`` with its size and hash. Scenarios
create datasets; a stage saves them, and environments gather datapoints from them.
"""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from ratchet.errors import DataError, RenamedAttributes
from ratchet.rollouts.arrays import STRING, Array, dotted, dtype_name
from ratchet.rollouts.files import load_nested_array_dict, save_nested_array_dict
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.seeding import numpy_generator

SCHEMA = 1
DESCRIPTION_FILE = "dataset.json"

Ids: TypeAlias = npt.NDArray[np.int64]
__all__ = ["DataOrder", "NestedArrayDictDataset"]


class StoredDataset(ABC):
    """Datapoints with a common leading dimension; immutable."""

    data_file: ClassVar[str]
    """The name of the file of data in a saved dataset."""
    notes: Mapping[str, int] = MappingProxyType({})
    """Counts of its construction, by name; they are not part of its content."""

    @abstractmethod
    def __len__(self) -> int: ...

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash[:16], 16)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} datapoints: {', '.join(self.fields)})"

    @property
    @abstractmethod
    def fields(self) -> list[str]:
        """The names of all fields, nested ones with dots, sorted."""

    @cached_property
    def hash(self) -> str:
        """SHA-256 of names, types, shapes and values: independent of file, device and process."""
        return self._hash_content()

    def with_notes(self, notes: Mapping[str, int]) -> Self:
        """Return the same data with counts of their construction."""
        noted = copy.copy(self)
        noted.notes = MappingProxyType(dict(notes))
        return noted

    def save(self, directory: Path | str) -> None:
        """Write the data and ``dataset.json`` into a folder, which is created if missing."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._save_data(directory / self.data_file)
        description = {"schema": SCHEMA, "num_datapoints": len(self), "hash": self.hash}
        notes = {"notes": dict(self.notes)} if self.notes else {}
        text = json.dumps({**description, **notes}, indent=2)
        (directory / DESCRIPTION_FILE).write_text(text + "\n")

    @classmethod
    def load(cls, directory: Path | str, *, check: bool = True) -> Self:
        """Read a saved dataset, if ``check`` comparing the hash of all of it."""
        directory = Path(directory)
        try:
            description = json.loads((directory / DESCRIPTION_FILE).read_text())
            schema, size, expected = (description[k] for k in ("schema", "num_datapoints", "hash"))
            if schema != SCHEMA:
                raise DataError(f"{directory}: got dataset schema {schema!r}, expected {SCHEMA}.")
            dataset = cls._load_data(directory / cls.data_file, size)
            if "notes" in description:
                dataset = dataset.with_notes(description["notes"])
        except DataError:
            raise
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"cannot read the dataset in {directory}: {error}. Expected {DESCRIPTION_FILE} and"
                f" {cls.data_file} as written by {cls.__name__}.save; build the dataset again."
            ) from error
        if check and dataset.hash != expected:
            raise DataError(
                f"{directory}: the data's hash is {dataset.hash}, expected {expected}."
                " The files were changed or damaged; build the dataset again."
            )
        return dataset

    @abstractmethod
    def _hash_content(self) -> str: ...

    @abstractmethod
    def _save_data(self, file: Path) -> None: ...

    @classmethod
    @abstractmethod
    def _load_data(cls, file: Path, size: int) -> Self:
        """Read the data file; raise ``ValueError`` if it is damaged."""


class DataOrder:
    """An endless order of datapoints: each occurs once before any occurs twice.

    ``purpose`` distinguishes orders with the same seed, e.g. ``"train"``.

    Each epoch has a separate permutation, which depends only on the seed, the purpose and the
    epoch.
    """

    def __init__(
        self, seed: int, size: int, *, purpose: str = "train", shuffle: bool = True
    ) -> None:
        if size < 1:
            raise DataError(f"DataOrder: got size {size}, expected at least one datapoint.")
        self.seed = seed
        self.size = size
        self.purpose = purpose
        self.shuffle = shuffle

    def take(self, start: int, count: int) -> Ids:
        """Return the datapoints at positions ``start`` to ``start + count``, int64 [count]."""
        if start < 0 or count < 0:
            raise DataError(
                f"DataOrder.take: got start {start} and count {count}, expected none negative."
            )
        epoch, offset = divmod(start, self.size)
        parts: list[Ids] = [np.empty(0, dtype=np.int64)]
        while count > 0:
            part = self._permutation(epoch)[offset : offset + count]
            parts.append(part)
            count -= len(part)
            epoch, offset = epoch + 1, 0
        return np.concatenate(parts)

    def _permutation(self, epoch: int) -> Ids:
        if not self.shuffle:
            return np.arange(self.size, dtype=np.int64)
        generator = numpy_generator(self.seed, "data_order", epoch, self.purpose)
        return generator.permutation(self.size).astype(np.int64, copy=False)


class NestedArrayDictDataset(RenamedAttributes, StoredDataset):
    """Datapoints with a common leading dimension; immutable.

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
