"""Files in the folders of finished stages that every family has, readable without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ratchet.store.manifest import Manifest

DATASETS_FOLDER = "datasets"
DATASETS_FILE = "datasets.json"
TRAIN_DATASET = "train"
STATE_FOLDER = "state"
TABLE_FILE = "table.json"
TRANSCRIPTS_FILE = "transcripts.jsonl"
"""Rollouts of the stage that the report shows, one per line."""

Table = Mapping[str, Sequence[Any]]


def dataset_names(manifest: Manifest) -> list[str]:
    """Return the names of a finished stage's datasets, from its manifest."""
    paths = [path.split("/") for path in manifest.files]
    return sorted({parts[1] for parts in paths if parts[0] == DATASETS_FOLDER and len(parts) > 2})


def video_path(episode: int) -> str:
    """Return the path of a test episode's video, relative to the stage's folder."""
    return f"videos/{episode}.gif"


def write_table(folder: Path, table: Table) -> None:
    """Write a table of answers, with one row per datapoint, into a stage's folder."""
    columns = {name: list(column) for name, column in table.items()}
    (folder / TABLE_FILE).write_text(json.dumps(columns, allow_nan=False) + "\n")


def read_table(folder: Path) -> Table | None:
    """Read a table written by :func:`write_table`; None if the stage has no table."""
    path = folder / TABLE_FILE
    return cast(Table, json.loads(path.read_text())) if path.is_file() else None
