"""Trainers of the library on a device that refuses to meet the CPU, where simulators stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchrl.trainers import ReplayBufferTrainer

from tests.trainers.emulated_device import play_in_a_process
from trainers.torchrl.assembly import place_samples
from trainers.torchrl.snapshots import hooks

SCRIPT = Path(__file__).with_name("play_on_emulated_device.py")


def play(*names: str) -> None:
    assert play_in_a_process(SCRIPT, *names) == [f"played {name}" for name in names]


def test_samples_of_frames_in_files_are_copied_to_the_device(small):
    trainer = small.trained("dqn", 1).torchrl_trainer
    (hook,) = {one for _, one in hooks(trainer) if isinstance(one, ReplayBufferTrainer)}
    place_samples(trainer, "cpu")
    assert str(hook.device) == "cpu"
    place_samples(trainer, "meta")
    hook.iterate = False
    assert hook.sample(None).device.type == "meta"


@pytest.mark.slow
def test_custom_networks_learn_and_are_tested_on_the_device():
    play("custom_ppo")


@pytest.mark.slow
@pytest.mark.parametrize("names", [("ppo", "a2c", "reinforce"), ("dqn", "ddpg", "td3")])
def test_the_librarys_networks_do(names):
    play(*names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ("sac", "offline_to_online"),
        pytest.param(("iql",), marks=pytest.mark.exhaustive),
        pytest.param(("cql",), marks=pytest.mark.exhaustive),
    ],
)
def test_ensembles_of_critics_do(names):
    play(*names)
