"""A script: language trainers on the emulated device, a line for each.

Names are ``TRAINER``, or ``TRAINER.reward`` for a KL penalty in the reward.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import emulated_device
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.scenarios import build_scenario_instance
from trainers.registry import trainer_class

SHAPE = {"layers": 1, "d_model": 16, "heads": 2, "d_mlp": 32, "context_length": 32}
REWARD = {"kl": {"coef": 0.1, "place": "reward"}}


def make(name: str) -> Any:
    """Build a trainer on the device."""
    trainer, _, place = name.partition(".")
    agent: dict[str, Any] = {"max_tokens": 4, "small_model": SHAPE}
    given: dict[str, Any] = {trainer: REWARD} if place else {}
    if trainer == "on_policy_distillation":
        folder = Path(tempfile.mkdtemp()) / "teacher"
        shape = SmallModelShape(**SHAPE)
        make_small_model(folder, alphabet="abcdefghij=> :", shape=shape, seed=3)
        agent = {"max_tokens": 4, "model": str(folder)}
        given = {trainer: {"teacher": str(folder)}}
    hyper_params = HyperParameters(
        scenario="language_task",
        dataset="reverse",
        trainer=trainer,
        rl={"num_iterations": 2},
        language_task={
            "num_train": 16,
            "num_test": 2,
            "chat": False,
            "evaluator": "partial",
            "reverse": {"length": 3, "num_symbols": 6},
        },
        agents={"_default": agent},
        language={"tasks_per_step": 2, "group_size": 3, "num_epochs": 2, "minibatch_size": 2},
        **given,
    )
    settings = ExperimentSettings(device=emulated_device.NAME, progress="none")
    found = trainer_class(hyper_params)
    instance = build_scenario_instance(hyper_params, settings, trainer_type=found.trainer_type)
    return found(hyper_params, instance, settings)


def play(name: str) -> None:
    """Train an iteration, test, and load the state."""
    trainer = make(name)
    trainer.initial_state()
    weights = trainer.learner.model.parameters()
    assert all(weight.device.type == emulated_device.NAME for weight in weights)
    trainer.run_iterations(0, 2)
    trainer.run_test()
    trainer.state = trainer.state


if __name__ == "__main__":
    torch.set_num_threads(1)
    emulated_device.install()
    for chosen in sys.argv[1:]:
        play(chosen)
        sys.stdout.write(f"played {chosen}\n")
