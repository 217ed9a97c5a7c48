"""Read images and their labels: scikit-learn's digits, or a dataset in the hub's layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.scenarios.hub import load_hub_splits
from ratchet.scenarios.image_classification.sources import DIGITS, ImageSource, read_dataset_name

_LARGEST_DIGIT_VALUE = 16
_IMAGE_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class LabelledImages:
    """Images uint8 [N, C, H, W] and their classes int64 [N]."""

    images: NDArray[np.uint8]
    classes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.classes)

    def take(self, rows: NDArray[np.int64]) -> LabelledImages:
        """Return some of them, in the order of ``rows``."""
        return LabelledImages(self.images[rows], self.classes[rows])


def load_images(dataset: str) -> dict[str, LabelledImages]:
    """Read a dataset by its name: ``train`` and ``test`` where the data have both, else ``all``.

    Raises
    ------
    ParameterError
        If there is no such dataset.
    DataError
        If it can't be read, or its images are not those of the dataset.
    """
    kind, source, place = read_dataset_name(dataset)
    if kind == DIGITS or place is None:
        return {"all": _load_digits()}
    splits = load_hub_splits(place, f"dataset={kind}:FOLDER", source.config)
    wanted = ("train", "test") if {"train", "test"} <= splits.keys() else tuple(splits)
    read = {split: _read_split(splits[split], source, f"{place}[{split}]") for split in wanted}
    if len(read) > 1 and "test" not in read:
        return {"all": _join(list(read.values()))}
    return read if "test" in read else {"all": next(iter(read.values()))}


def _load_digits() -> LabelledImages:
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    scaled = np.rint(images * (255 / _LARGEST_DIGIT_VALUE)).astype(np.uint8)
    return LabelledImages(scaled.reshape(-1, 1, 8, 8), classes.astype(np.int64))


def _join(parts: list[LabelledImages]) -> LabelledImages:
    return LabelledImages(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.classes for part in parts]),
    )


def _read_split(rows: Any, source: ImageSource, where: str) -> LabelledImages:  # noqa: ANN401
    """Decode all images of a ``datasets.Dataset``."""
    image, label = _find_columns(rows, source, where)
    channels, height, width = source.shape
    images = np.empty((len(rows), *source.shape), dtype=np.uint8)
    for index, picture in enumerate(rows[image]):
        if picture.size != (width, height):
            raise DataError(
                f"{where} row {index}: got an image of {picture.size[0]} x {picture.size[1]}"
                f" pixels, expected {width} x {height}."
            )
        pixels = np.asarray(picture.convert(_IMAGE_MODES[channels]))
        images[index] = pixels.reshape(height, width, channels).transpose(2, 0, 1)
    classes = np.asarray(rows[label], dtype=np.int64)
    if len(classes) == 0 or classes.min() < 0 or classes.max() >= source.num_classes:
        raise DataError(
            f"{where}: column {label!r}: got {len(classes)} labels from"
            f" {classes.min(initial=0)} to {classes.max(initial=0)}, expected some from 0 to"
            f" {source.num_classes - 1}."
        )
    return LabelledImages(images, classes)


def _find_columns(rows: Any, source: ImageSource, where: str) -> tuple[str, str]:  # noqa: ANN401
    """Find the column of images, whatever its name, and check that of the labels."""
    from datasets import Image

    pictures = [name for name, feature in rows.features.items() if isinstance(feature, Image)]
    if len(pictures) != 1 or source.label not in rows.features:
        raise DataError(
            f"{where}: got the columns {sorted(rows.features)}, {len(pictures)} of them with"
            f" images; expected one column of images, and labels in {source.label!r}."
        )
    return pictures[0], source.label
