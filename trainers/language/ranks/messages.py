"""Messages between the main process and ranks: files in a folder, without pickle."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ratchet.errors import RankError
from ratchet.language_models.engines.rollouts import Completion, SampleRequest
from trainers.state_tree import flatten_tree, save_tree

_Record = TypeVar("_Record")


def save_message(tree: dict[str, Any], folder: Path, name: str) -> None:
    """Write a message; raises RankError if the file system is full."""

    def size() -> int:
        content, tensors = flatten_tree(tree)
        return sum(tensor.nbytes for tensor in tensors.values()) + len(json.dumps(content))

    with full_disk_named(folder, size):
        save_tree(tree, folder, name)


@contextmanager
def full_disk_named(folder: Path, size: Callable[[], int]) -> Iterator[None]:
    """Raise RankError if a file system is too full for files of a size."""
    try:
        yield
    except Exception as error:
        # the library of tensors' files raises errors of its own
        if not any(os.strerror(number) in str(error) for number in (ENOSPC, EDQUOT)):
            raise
        free = shutil.disk_usage(folder).free
        raise RankError(
            f"{folder}: no space left for the files of language.train_service.world_size: needs"
            f" {size()} bytes, {free} are free. Delete files, or set TMPDIR to another folder."
        ) from error


def to_json(records: Sequence[SampleRequest] | Sequence[Completion]) -> str:
    """Return requests or completions as lists of their fields."""
    rows = [[getattr(each, field.name) for field in fields(each)] for each in records]
    return json.dumps(rows, default=np.generic.item)


def from_json(kind: Callable[..., _Record], text: str) -> list[_Record]:
    """Read the result of :func:`to_json`."""
    rows: list[list[Any]] = json.loads(text)
    return [kind(*(tuple(e) if isinstance(e, list) else e for e in row)) for row in rows]
