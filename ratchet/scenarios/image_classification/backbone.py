"""Pretrained vision backbones of ``transformers``, and the embeddings computed with them.

The only module of the scenarios that imports ``transformers``; weights are read as safetensors.
Embeddings are computed once, in half precision, and memory-mapped. They are stored in
``<home>/embeddings``, in a folder named by the hashes of images and backbone, which is renamed into
place when complete.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.errors import DataError
from ratchet.lazy import PRETRAINED_LOCK
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.hub import hash_files

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

DEFAULT_SIZE = 224
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_READ_FILES = (".safetensors", "config.json")

SCHEMA = 1
FOLDER = "embeddings"
_PREFIX = "embedding_"


def local_model_files(name: str) -> dict[str, str]:
    """Return the SHA-256 by name of a local backbone's files; empty for one on the hub."""
    hashes = hash_files(Path(name).expanduser())
    return {file: digest for file, digest in hashes.items() if file.endswith(_READ_FILES)}


def content_name(name: str) -> str:
    """Return a backbone's name by content: a local one by the hash of its files."""
    files = local_model_files(name)
    if not files:
        return name
    content = json.dumps(files, sort_keys=True)
    return f"{Path(name).name}:{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def embedding_channels(name: str) -> int:
    """Return the number of features at each position of a backbone's output, by its configuration.

    Raises DataError if there is no such backbone.
    """
    from transformers import AutoConfig

    config = _from_pretrained(AutoConfig, name)
    sizes = getattr(config, "hidden_sizes", None) or [getattr(config, "hidden_size", None)]
    if not isinstance(sizes[-1], int):
        raise DataError(
            f"pretrained_embeddings_model {name}: its configuration ({type(config).__name__}) has"
            " neither hidden_sizes nor hidden_size, expected a vision backbone, e.g. a ResNet."
        )
    return sizes[-1]


@dataclass(frozen=True)
class Preprocessing:
    """Preparation of images: resized, then shifted and scaled by channel."""

    size: tuple[int, int] = (DEFAULT_SIZE, DEFAULT_SIZE)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @classmethod
    def read(cls, content: dict[str, Any]) -> Preprocessing:
        """Read a model's ``preprocessor_config.json``; missing values have defaults."""
        size = content.get("size", DEFAULT_SIZE)
        if isinstance(size, dict):
            edge = size.get("shortest_edge", DEFAULT_SIZE)
            size = (size.get("height", edge), size.get("width", edge))
        elif isinstance(size, int):
            size = (size, size)
        mean = content.get("image_mean") or IMAGENET_MEAN
        std = content.get("image_std") or IMAGENET_STD
        return cls((int(size[0]), int(size[1])), tuple(mean), tuple(std))

    def __call__(self, images: Tensor) -> Tensor:
        """Map uint8 [b, 1 or 3, H, W] to f32 [b, 3, *size]; grey becomes three equal colours."""
        x = images.to(torch.float32) / 255
        x = x.expand(-1, len(self.mean), -1, -1)
        x = F.interpolate(x, size=self.size, mode="bilinear", antialias=True)
        mean, std = (torch.tensor(values, device=x.device) for values in (self.mean, self.std))
        return (x - mean[:, None, None]) / std[:, None, None]


class Backbone:
    """A pretrained backbone, for inference: a folder, ``OWNER/NAME`` or ``OWNER/NAME@REVISION``."""

    def __init__(self, name: str, device: str | torch.device = "cpu") -> None:
        from transformers import AutoModel

        self.name = name
        self.device = torch.device(device)
        self.model = _from_pretrained(AutoModel, name, use_safetensors=True)
        self.model.to(self.device).eval()
        self.preprocessing = Preprocessing.read(_preprocessor_content(name))

    @property
    def identity(self) -> dict[str, str]:
        """The inputs of its results: its files' hashes, or its revision on the hub."""
        files = local_model_files(self.name)
        if files:
            return files
        return {self.name: str(self.model.config._commit_hash)}

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Map images uint8 [b, 1 or 3, H, W] to features f32 [b, c, h, w], on the CPU.

        A transformer's tokens that do not represent a patch are dropped.
        """
        pixels = self.preprocessing(images.to(self.device))
        features: Tensor = self.model(pixel_values=pixels).last_hidden_state
        if features.dim() == 3:
            side = math.isqrt(features.shape[1])
            patches = features[:, features.shape[1] - side * side :]
            features = patches.transpose(1, 2).reshape(len(patches), -1, side, side)
        if features.dim() != 4:
            raise DataError(
                f"pretrained_embeddings_model {self.name}: got an output of shape"
                f" {tuple(features.shape)}, expected [b, c, h, w] or [b, tokens, c]."
            )
        return features.to("cpu", torch.float32)


def _where(name: str) -> tuple[str, str | None]:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder), None
    repository, _, revision = name.partition("@")
    return repository, revision or None


def _from_pretrained(loader: Any, name: str, **options: Any) -> Any:  # noqa: ANN401 -- untyped
    location, revision = _where(name)
    try:
        with PRETRAINED_LOCK:
            return loader.from_pretrained(location, revision=revision or "main", **options)
    except (OSError, ValueError) as error:
        raise DataError(
            f"pretrained_embeddings_model {name}: cannot be read: {error}. Expected a vision"
            " backbone on the Hugging Face hub (needs the network once, HF_HUB_OFFLINE unset), or"
            f" a local copy: hf download {location} --local-dir FOLDER, then"
            " pretrained_embeddings_model=FOLDER. Weights must be safetensors."
        ) from error


def _preprocessor_content(name: str) -> dict[str, Any]:
    from transformers.utils.hub import cached_file

    location, revision = _where(name)
    path = cached_file(
        location,
        "preprocessor_config.json",
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
    )
    if path is None:
        return {}
    content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return content


ARRAY_FILE, DESCRIPTION_FILE = "embeddings.npy", "embeddings.json"


def embedding_field(model: str) -> str:
    """Return the name of the field with a backbone's embeddings."""
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
    """Add the embeddings of all backbones, by folder or name, to ``image`` uint8 [N, C, H, W].

    The returned datasets have a field f16 [N, c, h, w] for each backbone; row i is image i's. Reads
    the settings ``home``, ``device`` and ``pretrained_embeddings_batch_size``.
    """
    added = dict(datasets)
    root = Path(settings.home) / FOLDER
    for model in sorted(set(models)):
        backbone = Backbone(model, settings.device)
        for name, dataset in added.items():
            images = dataset["image"]
            folder = root / _key(images, backbone)
            if not folder.is_dir():
                _compute(folder, images, backbone, settings.pretrained_embeddings_batch_size)
            td = dataset.td.copy()
            td[embedding_field(model)] = _read(folder, len(images))
            added[name] = TensorDictDataset(td)
    return added


def _key(images: Tensor, backbone: Backbone) -> str:
    """Hash all inputs of embeddings."""
    pixels = hashlib.sha256(images.contiguous().numpy().data).hexdigest()
    content = {
        "schema": SCHEMA,
        "images": [pixels, *images.shape],
        "backbone": backbone.identity,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _compute(folder: Path, images: Tensor, backbone: Backbone, batch_size: int) -> None:
    """Embed all images, and move the result into place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work_folder = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        array: Any = None
        for start in range(0, len(images), batch_size):
            features = backbone.embed(images[start : start + batch_size]).to(torch.float16).numpy()
            if array is None:
                array = np.lib.format.open_memmap(
                    work_folder / ARRAY_FILE, "w+", np.float16, (len(images), *features.shape[1:])
                )
            array[start : start + len(features)] = features
        array.flush()
        description = {"schema": SCHEMA, "shape": list(array.shape), "sha256": _hash(work_folder)}
        del array
        (work_folder / DESCRIPTION_FILE).write_text(json.dumps(description, indent=1) + "\n")
        if not folder.is_dir():
            work_folder.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process may have stored the same
            raise
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)


def _read(folder: Path, size: int) -> Tensor:
    """Map embeddings [N, c, h, w] into memory and check their content."""
    try:
        description = json.loads((folder / DESCRIPTION_FILE).read_text())
        array = np.load(folder / ARRAY_FILE, mmap_mode="c", allow_pickle=False)
        is_intact = (
            description["schema"] == SCHEMA
            and description["shape"] == list(array.shape)
            and len(array) == size
            and description["sha256"] == _hash(folder)
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(_damaged(folder, str(error))) from error
    if not is_intact:
        raise DataError(_damaged(folder, "its content has changed"))
    return torch.from_numpy(array)


def _damaged(folder: Path, why: str) -> str:
    return (
        f"the embeddings in {folder} are damaged: {why}. Remove the folder; they are recomputed"
        " when they are needed."
    )


def _hash(folder: Path) -> str:
    with (folder / ARRAY_FILE).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
