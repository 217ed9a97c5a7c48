"""Messages between the main process and ranks: files in a folder, without pickle."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ratchet.language_models.engines.rollouts import Completion, SampleRequest
from trainers.language.ranks.files import full_disk_named
from trainers.state_tree import flatten_tree, save_tree

_Record = TypeVar("_Record")


def save_message(tree: dict[str, Any], folder: Path, name: str) -> None:
    """Write a message; raises RankError if the file system is full."""

    def size() -> int:
        content, tensors = flatten_tree(tree)
        return sum(tensor.nbytes for tensor in tensors.values()) + len(json.dumps(content))

    with full_disk_named(folder, size):
        save_tree(tree, folder, name)


def to_json(records: Sequence[SampleRequest] | Sequence[Completion]) -> str:
    """Return requests or completions as lists of their fields."""
    rows = [[getattr(each, field.name) for field in fields(each)] for each in records]
    return json.dumps(rows, default=np.generic.item)


def from_json(kind: Callable[..., _Record], text: str) -> list[_Record]:
    """Read the result of :func:`to_json`."""
    rows: list[list[Any]] = json.loads(text)
    return [kind(*(tuple(e) if isinstance(e, list) else e for e in row)) for row in rows]
