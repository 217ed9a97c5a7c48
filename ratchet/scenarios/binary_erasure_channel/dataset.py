"""Deals of the binary-erasure-channel game: a bit, what the verifier sees, what the channel does.

Every combination comes as often as its chance says, up to whole numbers, so that the known answers
hold for the dataset itself and not only on average.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict

from ratchet.errors import ParameterError
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.seeding import torch_generator

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.binary_erasure_channel.parameters import (
        BinaryErasureChannelParameters,
    )

GENERATED = "generated"
ERASED = 2
"""What a verifier sees of an erased bit."""


def build_erasure_datasets(hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
    """Make ``train`` and ``test``.

    Raises
    ------
    ParameterError
        If the dataset's name is unknown or a side would be empty.
    """
    section: BinaryErasureChannelParameters = hyper_params.binary_erasure_channel
    if hyper_params.dataset != GENERATED:
        raise ParameterError(
            f"dataset: got {hyper_params.dataset!r}, expected {GENERATED!r}, the only one of the"
            " scenario binary_erasure_channel; its section says how it is generated."
        )
    num_test = round(section.num_datapoints * hyper_params.test_size)
    if not 0 < num_test < section.num_datapoints:
        raise ParameterError(
            f"test_size: {hyper_params.test_size} of {section.num_datapoints} deals leaves"
            f" {num_test} for testing, expected at least one and not all."
        )
    seed = hyper_params.seed if section.dataset_seed is None else section.dataset_seed
    sizes = {"train": section.num_datapoints - num_test, "test": num_test}
    datasets = {side: _deal(section, size, seed, side) for side, size in sizes.items()}
    datasets["train"] = datasets["train"].take(hyper_params.dataset_options.max_train_size)
    return datasets


def _deal(
    section: BinaryErasureChannelParameters, size: int, seed: int, side: str
) -> TensorDictDataset:
    """Make the deals of one side, in random order.

    They have ``bit``, ``observation`` (the bit or 2) and ``y`` (the bit) int64, ``lie_erased``
    bool, [N].
    """
    unseen, erased = section.observation_erasure_probability, section.lie_erasure_probability
    chances = {
        (bit, observation, lie_erased): 0.5 * of_look * of_channel
        for bit in (0, 1)
        for observation, of_look in ((bit, 1 - unseen), (ERASED, unseen))
        for lie_erased, of_channel in ((0, 1 - erased), (1, erased))
    }
    counts = torch.tensor(_whole_numbers(list(chances.values()), size))
    rows = torch.tensor(list(chances)).repeat_interleave(counts, dim=0)
    order = torch.randperm(
        size, generator=torch_generator(seed, "binary_erasure_channel", purpose=side)
    )
    bit, observation, lie_erased = rows[order].unbind(1)
    fields = {
        "bit": bit,
        "observation": observation,
        "lie_erased": lie_erased.bool(),
        "y": bit.clone(),
    }
    return TensorDictDataset(TensorDict(fields, batch_size=[size]))


def _whole_numbers(chances: list[float], total: int) -> list[int]:
    """Round shares of a total so that they add up, the largest remainders upwards."""
    exact = [chance * total for chance in chances]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts
