"""Turn classes into the labels 0 and 1 of a binary question."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import ParameterError
from ratchet.seeding import numpy_generator

if TYPE_CHECKING:
    from ratchet.parameters.options import DatasetOptions

LEFT_OUT = -1


def label_by_class(options: DatasetOptions, num_classes: int, seed: int) -> NDArray[np.int64]:
    """Return the label of each class, int64 [n]: 0, 1, or -1 for classes that are left out.

    ``merge``: the lower half of the classes is 0, the upper half 1. ``select_two``: the first of
    ``selected_classes`` is 0, the second 1, others are left out; classes 0 and 1 when not given.
    ``random``: half of the classes, drawn with ``binarification_seed`` (``seed`` when not given),
    are 1. With an odd number of classes one more is labelled 1 than 0.

    Raises
    ------
    ParameterError
        If the selected classes are not two different ones of those there are, or are given for
        another method.
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
        own = options.binarification_seed
        numpy_generator(seed if own is None else own, "binarification").shuffle(labels)
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
