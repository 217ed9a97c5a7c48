"""Datapoints of an environment: seeds of initial states, which tests don't share with training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict

from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.seeding import numpy_generator

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.gymnasium.parameters import GymnasiumParameters

_SEED_BOUND = 2**31


def build_seed_datasets(hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
    """Draw the seeds of ``train`` and ``test``, all different.

    More training seeds leave those of tests as they are.
    """
    section: GymnasiumParameters = hyper_params.gymnasium
    rng = numpy_generator(hyper_params.seed, "gymnasium", purpose="seeds")
    num_test, num_train = section.num_test_episodes, section.num_train_seeds
    drawn = dict.fromkeys(rng.integers(_SEED_BOUND, size=num_test).tolist())
    while len(drawn) < num_test + num_train:
        drawn |= dict.fromkeys(rng.integers(_SEED_BOUND, size=num_train).tolist())
    seeds = torch.tensor(list(drawn), dtype=torch.int64)
    parts = {"train": seeds[num_test : num_test + num_train], "test": seeds[:num_test]}
    return {
        name: TensorDictDataset(TensorDict({"seed": part}, batch_size=[len(part)]))
        for name, part in parts.items()
    }
