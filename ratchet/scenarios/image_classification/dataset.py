"""Datasets of images with a binary label: ``train`` and ``test``, balanced, with their scale.

Images stay bytes; what normalises them is measured on the training images and kept beside each
image of both sets, so that a dataset needs no other to be understood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from ratchet.errors import DataError, ParameterError
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.image_classification.binarification import LEFT_OUT, label_by_class
from ratchet.scenarios.image_classification.loading import LabelledImages, load_images
from ratchet.scenarios.image_classification.sources import read_dataset_name
from ratchet.seeding import numpy_generator

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

LARGEST_BYTE = 255.0


def build_image_datasets(hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
    """Make ``train`` and ``test``.

    They have ``image`` uint8 [N, C, H, W], ``pixel_mean`` and ``pixel_std`` f32 [N, C] (of the
    training images, values from 0 to 1), ``y`` and ``original_class`` int64 [N]. Where the data
    have no test set of their own, ``test_size`` of them are taken at random.

    Raises
    ------
    ParameterError
        If there is no such dataset, or its classes cannot be made binary so.
    DataError
        If it can't be read, or a label has no image.
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
    """Shuffle the images that have a label; balanced, leave out what one label has too many."""
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
