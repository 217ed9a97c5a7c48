"""Pretrained vision backbones of ``transformers``: images in, a grid of features out.

The only module of the scenarios that knows that package. Weights are read as safetensors only.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.errors import DataError
from ratchet.scenarios.hub import hash_files

DEFAULT_SIZE = 224
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_READ_FILES = (".safetensors", "config.json")


def local_model_files(name: str) -> dict[str, str]:
    """Return what decides a backbone in a folder: SHA-256 by name; nothing for one on the hub."""
    hashes = hash_files(Path(name).expanduser())
    return {file: digest for file, digest in hashes.items() if file.endswith(_READ_FILES)}


def content_name(name: str) -> str:
    """Return a backbone's name by what it is: one in a folder by the hash of its files."""
    files = local_model_files(name)
    if not files:
        return name
    content = json.dumps(files, sort_keys=True)
    return f"{Path(name).name}:{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def embedding_channels(name: str) -> int:
    """Return the number of features at each place of a backbone's output, by its configuration.

    Raises
    ------
    DataError
        If there is no such backbone, or its configuration does not say.
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
    """How images are made ready: resized, then shifted and scaled by channel."""

    size: tuple[int, int] = (DEFAULT_SIZE, DEFAULT_SIZE)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @classmethod
    def read(cls, content: dict[str, Any]) -> Preprocessing:
        """Read a model's ``preprocessor_config.json``; what it does not say has its default."""
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
    """A pretrained backbone, for inference: a folder, ``OWNER/NAME`` or ``OWNER/NAME@REVISION``.

    Raises
    ------
    DataError
        If it can't be read.
    """

    def __init__(self, name: str, device: str | torch.device = "cpu") -> None:
        from transformers import AutoModel

        self.name = name
        self.device = torch.device(device)
        self.model = _from_pretrained(AutoModel, name, use_safetensors=True)
        self.model.to(self.device).eval()
        self.preprocessing = Preprocessing.read(_preprocessor_content(name))

    @property
    def identity(self) -> dict[str, str]:
        """What decides its results: its files' hashes, or its revision on the hub."""
        files = local_model_files(self.name)
        if files:
            return files
        return {self.name: str(self.model.config._commit_hash)}

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Map images uint8 [b, 1 or 3, H, W] to features f32 [b, c, h, w], on the CPU.

        Of a transformer's tokens, those that stand for no patch are left out.

        Raises
        ------
        DataError
            If the backbone's output is neither a grid nor a square of tokens.
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
    place, revision = _where(name)
    try:
        return loader.from_pretrained(place, revision=revision or "main", **options)
    except (OSError, ValueError) as error:
        raise DataError(
            f"pretrained_embeddings_model {name}: cannot be read: {error}. Expected a vision"
            " backbone on the Hugging Face hub (needs the network once, HF_HUB_OFFLINE unset), or"
            f" a local copy: hf download {place} --local-dir FOLDER, then"
            " pretrained_embeddings_model=FOLDER. Weights must be safetensors."
        ) from error


def _preprocessor_content(name: str) -> dict[str, Any]:
    from transformers.utils.hub import cached_file

    place, revision = _where(name)
    path = cached_file(
        place,
        "preprocessor_config.json",
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
    )
    if path is None:
        return {}
    content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return content
