"""Which datasets of images there are, and what is known of each before it is read. Light."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError, nearest

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

DIGITS = "digits"


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

    Returned are the name, what is known of it, and the place: a folder or a name on the hub, None
    for ``digits``.

    Raises
    ------
    ParameterError
        If there is no such dataset, or a copy of ``digits`` is asked for.
    """
    kind, _, place = name.partition(":")
    if kind not in SOURCES:
        raise ParameterError(
            f"dataset: got {name!r}, expected one of {', '.join(SOURCES)}, or e.g. 'mnist:FOLDER'"
            f" for a local copy.{nearest(kind, SOURCES)}"
        )
    source = SOURCES[kind]
    if source.hub_name is None and place:
        raise ParameterError(f"dataset: got {name!r}, expected {kind!r}: it is built in.")
    return kind, source, place or source.hub_name


def latent_grid(hyper_params: HyperParameters) -> tuple[int, int]:
    """Return height and width of the grid of latent pixels: halved, rounded down, in each group.

    Raises
    ------
    ParameterError
        If nothing is left of an image.
    """
    _, source, _ = read_dataset_name(hyper_params.dataset)
    groups: int = hyper_params.image_classification.num_block_groups
    _, height, width = source.shape
    if min(height, width) >> groups == 0:
        most = min(height, width).bit_length() - 1
        raise ParameterError(
            f"image_classification.num_block_groups: got {groups}, which leaves nothing of images"
            f" of {height} x {width} pixels, expected at most {most}."
        )
    return height >> groups, width >> groups
