"""The binary-erasure-channel game at the size of its experiment, trained directly."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer

PARAMETERS: dict[str, Any] = {
    "scenario": "binary_erasure_channel",
    "trainer": "vanilla_ppo",
    "dataset": "generated",
    "interaction_protocol": "adp",
    "rl": {
        "frames_per_batch": 1024,
        "minibatch_size": 256,
        "num_iterations": 40,
        "lr": 0.01,
        "num_test_iterations": 100,
    },
}


def make_parameters(**changes: Any) -> HyperParameters:
    plain = {path.replace("__", "."): value for path, value in changes.items()}
    return HyperParameters(**PARAMETERS).replace(plain)


def make_trainer(**changes: Any) -> Any:
    hyper_params, settings = make_parameters(**changes), ExperimentSettings()
    return build_trainer(hyper_params, build_scenario_instance(hyper_params, settings), settings)


@pytest.fixture(scope="session")
def erasure_parameters() -> Any:
    return make_parameters


@pytest.fixture(scope="session")
def erasure_trainer() -> Any:
    return make_trainer
