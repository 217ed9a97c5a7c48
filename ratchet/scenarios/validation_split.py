"""Separates the validation split from a scenario's datasets (section ``validation``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet.errors import ParameterError
from ratchet.parameters.key_inputs import data_seed
from ratchet.scenarios.base import VALIDATION
from ratchet.seeding import numpy_generator

if TYPE_CHECKING:
    from ratchet.language_models.auxiliary_calls import ModelCalls
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.base import Dataset, Scenario


def split_datasets(
    scenario: Scenario, hyper_params: HyperParameters, calls: ModelCalls | None = None
) -> Mapping[str, Dataset]:
    """Build the datasets of a run: without the validation split, or with it as ``test``.

    Unless the scenario builds the split itself, it is a random part of the training data;
    datapoints of equal :attr:`Scenario.group_field` stay together.
    """
    section = hyper_params.validation
    if VALIDATION in scenario.test_sets(hyper_params):
        raise ParameterError(
            f"scenario {hyper_params.scenario!r}: got a test set named {VALIDATION!r}, expected"
            " another name, since it is that of the validation split."
        )
    built = dict(scenario.make_datasets(hyper_params, calls))
    if section.size and VALIDATION not in built:
        num_train, _ = section.sizes(len(built["train"]), len(built["test"]))
        held_out = len(built["train"]) - num_train
        seed = data_seed(hyper_params)
        built["train"], built[VALIDATION] = _split(
            built["train"], held_out, seed, scenario.group_field
        )
    if section.replaces_test:
        if VALIDATION not in built:
            raise ParameterError(
                "validation.replaces_test: got true, but there is no validation split. Set"
                " validation.size, e.g. 0.2; for language tasks language_task.num_validation."
            )
        built = {n: built[n] for n in built if n in scenario.untested} | {"test": built[VALIDATION]}
    # of the split itself, only validation during training is a reader
    return {n: data for n, data in built.items() if n != VALIDATION or n in scenario.untested}


def expected_test_sets(scenario: Scenario, hyper_params: HyperParameters) -> list[str]:
    """Return the names of the test sets that :func:`split_datasets` will create."""
    return ["test"] if hyper_params.validation.replaces_test else scenario.test_sets(hyper_params)


def _split(
    train: Any,  # noqa: ANN401 -- a dataset of either family
    held_out: int,
    seed: int,
    group_field: str | None,
) -> tuple[Dataset, Dataset]:
    """Divide training data in order; whole groups are held out until the size is reached."""
    size = len(train)
    values = range(size) if group_field is None else train[group_field].tolist()
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    group_of = np.array([numbers[value] for value in values])
    order = numpy_generator(seed, VALIDATION, purpose="split").permutation(len(numbers))
    counts = np.bincount(group_of)[order]
    chosen = order[: int(np.searchsorted(counts.cumsum(), held_out)) + 1]
    is_held_out = np.isin(group_of, chosen)
    if is_held_out.all():
        raise ParameterError(
            f"validation.size: holds out {held_out} of {size} training datapoints, which leaves"
            " none to train on. Choose a smaller size."
        )
    parts = (np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out))
    training, validation = (type(train)(train[part.tolist()]) for part in parts)
    return training.with_notes(train.notes), validation
