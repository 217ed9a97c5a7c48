"""A script: an iteration, an evaluation and the tests of TorchRL's trainers on the emulated device.

Names are those of algorithms; ``own_ppo`` is one whose networks are no library's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import emulated_device
import small_trainers
from small_trainers import ON_POLICY
from torch import nn
from torchrl.collectors import Collector

from trainers.torchrl.snapshots import replay_buffers

VALUE_MODEL = "torchrl.trainers.algorithms.configs.modules._make_value_model"
NETWORKS = ("policy_network", "value_network")


def two_layers(in_features: int, out_features: int, num_cells: list[int]) -> nn.Module:
    """Create a network without a device argument."""
    width = num_cells[0]
    return nn.Sequential(nn.Linear(in_features, width), nn.Tanh(), nn.Linear(width, out_features))


def make(name: str) -> Any:
    """Build a trainer on the device that evaluates each iteration."""
    changes = {"torchrl__evaluation_period": 1, "torchrl__evaluation_episodes": 2}
    if name.startswith("custom_"):
        custom = {"_target_": f"{Path(__file__).stem}.two_layers"}
        untyped = (*(f"networks.{network}" for network in NETWORKS), "models.value_model")
        changes["torchrl__choices"] = dict.fromkeys(untyped)
        changes["torchrl__config__networks"] = dict.fromkeys(NETWORKS, custom)
        changes["torchrl__config__models__value_model"] = {"_target_": VALUE_MODEL}
    ring = name.removeprefix("custom_") not in (*ON_POLICY, "offline_to_online")
    if ring:  # files of frames cannot be created while the device is emulated
        changes["torchrl__choices"] = {"replay_buffer.storage": "lazy_tensor"}
    params = small_trainers.parameters(name.removeprefix("custom_"), **changes)
    return small_trainers.build(params, device=emulated_device.NAME)


def play(name: str) -> None:
    """Train, test, take the state, and resume with it in another trainer."""
    trainer = make(name)
    trainer.initial_state()
    for parameter in trainer.policy.parameters():
        assert parameter.device.type == emulated_device.NAME
    trainer.run_iterations(0, 1)
    trainer.run_test("test")
    resumed = make(name)
    resumed.state = trainer.state
    for made in (trainer, resumed):  # random orders are sampled on the device of the last one
        for buffer in replay_buffers(made.torchrl_trainer).values():
            order = getattr(buffer.sampler, "_sample_list", None)
            assert order is None or order.device == buffer.storage.device
    assert resumed.run_iterations(1, 2) == trainer.run_iterations(1, 2)


if __name__ == "__main__":
    emulated_device.install()
    Collector._get_sync_fn = lambda collector, device: lambda: None  # it knows three kinds
    for chosen in sys.argv[1:]:
        play(chosen)
        sys.stdout.write(f"played {chosen}\n")
