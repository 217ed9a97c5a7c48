"""Pretrained embeddings of datasets: computed once, kept by content, memory-mapped.

They lie in ``<home>/embeddings``, in a folder named by the images and the backbone that made them;
written aside and renamed, so that one that is there is whole. Half precision.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ratchet.errors import DataError
from ratchet.scenarios.dataset import TensorDictDataset

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.image_classification.backbone import Backbone

SCHEMA = 1
FOLDER = "embeddings"
ARRAY_FILE, DESCRIPTION_FILE = "embeddings.npy", "embeddings.json"
_PREFIX = "embedding_"


def embedding_field(model: str) -> str:
    """Return the name of the field that holds a backbone's embeddings."""
    return _PREFIX + hashlib.sha256(model.encode()).hexdigest()[:12]


def is_embedding_field(name: str) -> bool:
    """Return whether a field holds embeddings."""
    return name.startswith(_PREFIX)


def embedding_fields(dataset: TensorDictDataset) -> list[str]:
    """Return the fields of a dataset that hold embeddings."""
    return [name for name in dataset.fields if is_embedding_field(name)]


def add_embeddings(
    datasets: Mapping[str, TensorDictDataset], models: Iterable[str], settings: ExperimentSettings
) -> dict[str, TensorDictDataset]:
    """Put the embeddings of all backbones, by folder or name, beside ``image`` uint8 [N, C, H, W].

    The datasets come back with a field f16 [N, c, h, w] for each backbone; row i is image i's. Of
    the settings ``home``, ``device`` and ``pretrained_embeddings_batch_size`` are read.

    Raises
    ------
    DataError
        If a backbone can't be read, or what was kept is damaged.
    """
    added = dict(datasets)
    root = Path(settings.home) / FOLDER
    for model in sorted(set(models)):
        from ratchet.scenarios.image_classification.backbone import Backbone

        backbone = Backbone(model, settings.device)
        for name, dataset in added.items():
            images = dataset["image"]
            kept = root / _key(images, backbone)
            if not kept.is_dir():
                _compute(kept, images, backbone, settings.pretrained_embeddings_batch_size)
            td = dataset.td.copy()
            td[embedding_field(model)] = _read(kept, len(images))
            added[name] = TensorDictDataset(td)
    return added


def _key(images: Tensor, backbone: Backbone) -> str:
    """Hash all that embeddings depend on."""
    pixels = hashlib.sha256(images.contiguous().numpy().data).hexdigest()
    content = {
        "schema": SCHEMA,
        "images": [pixels, *images.shape],
        "backbone": backbone.identity,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _compute(kept: Path, images: Tensor, backbone: Backbone, batch_size: int) -> None:
    """Embed all images, and move the result into place."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=kept.parent))
    try:
        array: Any = None
        for start in range(0, len(images), batch_size):
            features = backbone.embed(images[start : start + batch_size]).to(torch.float16).numpy()
            if array is None:
                array = np.lib.format.open_memmap(
                    aside / ARRAY_FILE, "w+", np.float16, (len(images), *features.shape[1:])
                )
            array[start : start + len(features)] = features
        array.flush()
        description = {"schema": SCHEMA, "shape": list(array.shape), "sha256": _hash(aside)}
        del array
        (aside / DESCRIPTION_FILE).write_text(json.dumps(description, indent=1) + "\n")
        if not kept.is_dir():
            aside.rename(kept)
    except OSError:
        if not kept.is_dir():  # somebody else may have been quicker with the same
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _read(kept: Path, size: int) -> Tensor:
    """Map embeddings [N, c, h, w] into memory and check that they are what was written."""
    try:
        description = json.loads((kept / DESCRIPTION_FILE).read_text())
        array = np.load(kept / ARRAY_FILE, mmap_mode="c", allow_pickle=False)
        whole = (
            description["schema"] == SCHEMA
            and description["shape"] == list(array.shape)
            and len(array) == size
            and description["sha256"] == _hash(kept)
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(_damaged(kept, str(error))) from error
    if not whole:
        raise DataError(_damaged(kept, "its content is not what was written"))
    return torch.from_numpy(array)


def _damaged(kept: Path, why: str) -> str:
    return (
        f"the embeddings in {kept} are damaged: {why}. Remove the folder; they are computed anew"
        " the next time."
    )


def _hash(folder: Path) -> str:
    with (folder / ARRAY_FILE).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
