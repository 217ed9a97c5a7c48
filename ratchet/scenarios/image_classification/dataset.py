"""Datasets of images with a binary label: ``train`` and ``test``, balanced, with their scale.

Images are stored as bytes. The normalisation is measured on the training images and stored with
each image of both sets, so that each dataset is self-contained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from ratchet.errors import DataError, ParameterError, nearest
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.hub import load_hub_splits
from ratchet.seeding import numpy_generator

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.options import DatasetOptions

DIGITS = "digits"

_LARGEST_DIGIT_VALUE = 16
_IMAGE_MODES = {1: "L", 3: "RGB"}
LEFT_OUT = -1
LARGEST_BYTE = 255.0


@dataclass(frozen=True)
class ImageSource:
    """A dataset of images of a shape (C, H, W), with labels in a column.

    It is on the Hugging Face hub, in one of its configurations where it has several; without
    ``hub_name`` the data come with an installed package.
    """

    shape: tuple[int, int, int]
    num_classes: int
    hub_name: str | None = None
    config: str | None = None
    label: str = "label"


SOURCES = {
    DIGITS: ImageSource((1, 8, 8), 10),
    "mnist": ImageSource((1, 28, 28), 10, "ylecun/mnist"),
    "fashion_mnist": ImageSource((1, 28, 28), 10, "zalando-datasets/fashion_mnist"),
    "kmnist": ImageSource((1, 28, 28), 10, "tanganke/kmnist"),
    "cifar10": ImageSource((3, 32, 32), 10, "uoft-cs/cifar10"),
    "cifar100": ImageSource((3, 32, 32), 100, "uoft-cs/cifar100", label="fine_label"),
    "svhn": ImageSource((3, 32, 32), 10, "ufldl-stanford/svhn", "cropped_digits"),
}


def read_dataset_name(name: str) -> tuple[str, ImageSource, str | None]:
    """Read the name of a dataset: ``NAME``, or ``NAME:PLACE`` for a copy.

    Returns the name, its description, and the location: a folder or a name on the hub, None for
    ``digits``.
    """
    kind, _, location = name.partition(":")
    if kind not in SOURCES:
        raise ParameterError(
            f"dataset: got {name!r}, expected one of {', '.join(SOURCES)}, or e.g. 'mnist:FOLDER'"
            f" for a local copy.{nearest(kind, SOURCES)}"
        )
    source = SOURCES[kind]
    if source.hub_name is None and location:
        raise ParameterError(f"dataset: got {name!r}, expected {kind!r}: it is built in.")
    return kind, source, location or source.hub_name


def latent_grid(hyper_params: HyperParameters) -> tuple[int, int]:
    """Return height and width of the grid of latent pixels: halved, rounded down, in each group."""
    _, source, _ = read_dataset_name(hyper_params.dataset)
    groups: int = hyper_params.image_classification.num_block_groups
    _, height, width = source.shape
    if min(height, width) >> groups == 0:
        max_groups = min(height, width).bit_length() - 1
        raise ParameterError(
            f"image_classification.num_block_groups: got {groups}, too many for images"
            f" of {height} x {width} pixels, expected at most {max_groups}."
        )
    return height >> groups, width >> groups


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
    """Read a dataset by its name: ``train`` and ``test`` where the data have both, else ``all``."""
    kind, source, location = read_dataset_name(dataset)
    if kind == DIGITS or location is None:
        return {"all": _load_digits()}
    splits = load_hub_splits(location, f"dataset={kind}:FOLDER", source.config)
    split_names = ("train", "test") if {"train", "test"} <= splits.keys() else tuple(splits)
    read = {
        split: _read_split(splits[split], source, f"{location}[{split}]") for split in split_names
    }
    if len(read) > 1 and "test" not in read:
        images = np.concatenate([part.images for part in read.values()])
        classes = np.concatenate([part.classes for part in read.values()])
        return {"all": LabelledImages(images, classes)}
    return read if "test" in read else {"all": next(iter(read.values()))}


def _load_digits() -> LabelledImages:
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    scaled = np.rint(images * (255 / _LARGEST_DIGIT_VALUE)).astype(np.uint8)
    return LabelledImages(scaled.reshape(-1, 1, 8, 8), classes.astype(np.int64))


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
    """Find the column of images by its type, and check that of the labels."""
    from datasets import Image

    pictures = [name for name, feature in rows.features.items() if isinstance(feature, Image)]
    if len(pictures) != 1 or source.label not in rows.features:
        raise DataError(
            f"{where}: got the columns {sorted(rows.features)}, {len(pictures)} of them with"
            f" images; expected one column of images, and labels in {source.label!r}."
        )
    return pictures[0], source.label


def label_by_class(options: DatasetOptions, num_classes: int, seed: int) -> NDArray[np.int64]:
    """Return the label of each class, int64 [n]: 0, 1, or -1 for omitted classes.

    ``merge``: the lower half of the classes is 0, the upper half 1. ``select_two``: the first of
    ``selected_classes`` is 0, the second 1, others are omitted; classes 0 and 1 by default.
    ``random``: half of the classes, drawn with ``binarification_seed`` (``seed`` when not given),
    are 1. With an odd number of classes one more is labelled 1 than 0.
    """
    if options.binarification_method != "select_two" and options.selected_classes is not None:
        raise ParameterError(
            f"dataset_options.selected_classes: got {options.selected_classes} with"
            f" binarification_method={options.binarification_method!r}, expected them with"
            " 'select_two' only."
        )
    if options.binarification_method == "select_two":
        return _select_two(options.selected_classes or (0, 1), num_classes)
    labels = (np.arange(num_classes) >= num_classes // 2).astype(np.int64)
    if options.binarification_method == "random":
        binarification_seed = options.binarification_seed
        numpy_generator(
            seed if binarification_seed is None else binarification_seed, "binarification"
        ).shuffle(labels)
    return labels


def _select_two(selected: tuple[int, int], num_classes: int) -> NDArray[np.int64]:
    zero, one = selected
    if zero == one or not all(0 <= chosen < num_classes for chosen in selected):
        raise ParameterError(
            f"dataset_options.selected_classes: got {selected}, expected two different classes"
            f" from 0 to {num_classes - 1}."
        )
    labels = np.full(num_classes, LEFT_OUT, dtype=np.int64)
    labels[[zero, one]] = (0, 1)
    return labels


def build_image_datasets(hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
    """Build ``train`` and ``test``.

    They have ``image`` uint8 [N, C, H, W], ``pixel_mean`` and ``pixel_std`` f32 [N, C] (of the
    training images, values from 0 to 1), ``y`` and ``original_class`` int64 [N]. If the data have
    no test set, ``test_size`` of them are sampled for it.
    """
    section, options = hyper_params.image_classification, hyper_params.dataset_options
    seed = hyper_params.seed if section.dataset_seed is None else section.dataset_seed
    _, source, _ = read_dataset_name(hyper_params.dataset)
    labels = label_by_class(options, source.num_classes, seed)
    sides = _split(load_images(hyper_params.dataset), hyper_params.test_size, seed)
    chosen = {
        side: _choose(data, labels, options.make_balanced, seed, side)
        for side, data in sides.items()
    }
    largest = options.max_train_size
    chosen["train"] = chosen["train"].take(np.arange(len(chosen["train"]))[:largest])
    scale = _pixel_scale(chosen["train"].images)
    return {side: _to_dataset(data, labels, scale) for side, data in chosen.items()}


def _split(
    loaded: dict[str, LabelledImages], test_size: float, seed: int
) -> dict[str, LabelledImages]:
    if "test" in loaded:
        return {"train": loaded["train"], "test": loaded["test"]}
    everything = loaded["all"]
    order = numpy_generator(seed, "image_classification", purpose="sides").permutation(
        len(everything)
    )
    num_test = round(test_size * len(everything))
    if not 0 < num_test < len(everything):
        raise ParameterError(
            f"test_size: {test_size} of {len(everything)} images leaves {num_test} for testing,"
            " expected at least one and not all."
        )
    return {"train": everything.take(order[num_test:]), "test": everything.take(order[:num_test])}


def _choose(
    data: LabelledImages, labels: NDArray[np.int64], balanced: bool, seed: int, side: str
) -> LabelledImages:
    """Shuffle the images with a label; if balanced, drop surplus images of one label."""
    rng = numpy_generator(seed, "image_classification", purpose=f"order/{side}")
    order = rng.permutation(len(data))
    y = labels[data.classes[order]]
    fewest = min((y == 0).sum(), (y == 1).sum())
    if fewest == 0:
        raise DataError(
            f"image_classification: the {side} set has {(y == 0).sum()} images with y=0 and"
            f" {(y == 1).sum()} with y=1, expected some of each. Choose other classes, or another"
            " test_size."
        )
    keep = y != LEFT_OUT
    if balanced:
        for label in (0, 1):
            keep[np.flatnonzero(y == label)[fewest:]] = False
    return data.take(order[keep])


def _pixel_scale(
    images: NDArray[np.uint8],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Measure mean and standard deviation of each channel [C], of values from 0 to 1."""
    counts = np.stack(
        [np.bincount(images[:, c].ravel(), minlength=256) for c in range(images.shape[1])]
    )
    values = np.arange(256) / LARGEST_BYTE
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ values
    std = np.sqrt(shares @ values**2 - mean**2)
    return mean.astype(np.float32), np.where(std > 0, std, 1.0).astype(np.float32)


def _to_dataset(
    data: LabelledImages,
    labels: NDArray[np.int64],
    scale: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> TensorDictDataset:
    size, channels = data.images.shape[:2]
    mean, std = (torch.from_numpy(values).expand(size, channels).clone() for values in scale)
    fields = {
        "image": torch.from_numpy(data.images),
        "pixel_mean": mean,
        "pixel_std": std,
        "y": torch.from_numpy(labels[data.classes]),
        "original_class": torch.from_numpy(data.classes),
    }
    return TensorDictDataset(TensorDict(fields, batch_size=[size]))
