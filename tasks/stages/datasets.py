"""Which datasets a finished stage has made: read from its manifest, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.store.manifest import Manifest

DATASETS_FOLDER = "datasets"
DATASETS_FILE = "datasets.json"
TRAIN_DATASET = "train"


def dataset_names(manifest: Manifest) -> list[str]:
    """Return the names of a finished stage's datasets, without reading them."""
    paths = [path.split("/") for path in manifest.files]
    return sorted({parts[1] for parts in paths if parts[0] == DATASETS_FOLDER and len(parts) > 2})
