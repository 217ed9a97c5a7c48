"""What datasets of tensors and of text have in common: told apart by content, saved and checked.

A saved one is a folder: a file of data, and ``dataset.json`` with its size and hash.
"""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Self

from ratchet.errors import DataError

SCHEMA = 1
DESCRIPTION_FILE = "dataset.json"


class StoredDataset(ABC):
    """Datapoints with a common leading dimension; a value, never changed."""

    data_file: ClassVar[str]
    """The name of the file of data in a saved dataset."""
    notes: Mapping[str, int] = MappingProxyType({})
    """Counts of how it was made, by name; they are no part of its content."""

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
        """Return the same data with counts of how they were made."""
        noted = copy.copy(self)
        noted.notes = MappingProxyType(dict(notes))
        return noted

    def save(self, directory: Path | str) -> None:
        """Write the data and ``dataset.json`` into a folder, made if need be."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._save_data(directory / self.data_file)
        description = {"schema": SCHEMA, "num_datapoints": len(self), "hash": self.hash}
        notes = {"notes": dict(self.notes)} if self.notes else {}
        text = json.dumps({**description, **notes}, indent=2)
        (directory / DESCRIPTION_FILE).write_text(text + "\n")

    @classmethod
    def load(cls, directory: Path | str, *, check: bool = True) -> Self:
        """Read a saved dataset, if ``check`` comparing the hash of all of it.

        Raises
        ------
        DataError
            If a file is missing or damaged.
        """
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
                f" {cls.data_file} as written by {cls.__name__}.save; make the dataset again."
            ) from error
        if check and dataset.hash != expected:
            raise DataError(
                f"{directory}: the data's hash is {dataset.hash}, expected {expected}."
                " The files were changed or damaged; make the dataset again."
            )
        return dataset

    @abstractmethod
    def _hash_content(self) -> str: ...

    @abstractmethod
    def _save_data(self, file: Path) -> None: ...

    @classmethod
    @abstractmethod
    def _load_data(cls, file: Path, size: int) -> Self:
        """Read the file of data; a ``ValueError`` says that it is damaged."""
