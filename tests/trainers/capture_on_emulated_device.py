"""A script: compares updates on the emulated device with and without graphs.

A line for each game: its name, and the number of replayed graphs.
"""

from __future__ import annotations

import sys
from typing import Any

import emulated_device
import fake_graphs
import tiny_experiment
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer
from trainers.tensordict.objectives.ppo import PpoObjective
from trainers.tensordict.optimization import captured
from trainers.tensordict.states.state import State

ALTERNATING = {"kind": "contiguous_periodic", "period": 2, "start": 0, "stop": 1}
RL = {
    "frames_per_batch": 32,
    "minibatch_size": 12,
    "num_epochs": 2,
    "num_iterations": 5,
    "anneal_lr": True,
}
OTHERS: dict[str, dict[str, Any]] = {
    "gymnasium": {
        "dataset": "CartPole-v1",
        "gymnasium": {"num_envs": 4, "max_episode_steps": 30},
        "agents": {"_default": {"hidden_sizes": [8]}},
    },
}


def make(game: str) -> Any:
    """Build the trainer of a protocol on graphs, or of another scenario, with PPO's loss type."""
    scenario, loss_type = game.split(".")
    settings = ExperimentSettings(device=emulated_device.NAME)
    ppo = {"loss_type": loss_type}
    if scenario in OTHERS:
        hyper_params = HyperParameters(
            scenario=scenario, trainer="vanilla_ppo", rl=RL, ppo=ppo, **OTHERS[scenario]
        )
        return build_trainer(
            hyper_params, build_scenario_instance(hyper_params, settings), settings
        )
    hyper_params = tiny_experiment.parameters(
        interaction_protocol=scenario,
        rl__num_iterations=5,
        rl__anneal_lr=True,
        ppo__loss_type=loss_type,
        agents__verifier__update_schedule=ALTERNATING,
    )
    return tiny_experiment.trainer(hyper_params, device=emulated_device.NAME)


def play(game: str) -> tuple[State, list[Any]]:
    """Return the state after four iterations, and the metrics of the last two.

    They are the same if the state of the second iteration is loaded, also into another trainer.
    """
    trainer, resumed = make(game), make(game)
    trainer.initial_state()
    trainer.run_iterations(0, 2)
    second = trainer.state
    metrics = trainer.run_iterations(2, 4)
    end = trainer.state
    for other in (trainer, resumed):
        other.state = second
        assert other.run_iterations(2, 4) == metrics
        assert other.state == end
    return end, metrics


def compare(game: str) -> str:
    """Play with graphs and without; return a line."""
    before = fake_graphs.replays
    with_graphs = play(game)
    replays = fake_graphs.replays - before
    captured.CapturedUpdates._capture, capture = no_capture, captured.CapturedUpdates._capture
    trainer = make(game)
    trainer.initial_state()
    trainer.run_iterations(0, 2)
    metrics = trainer.run_iterations(2, 4)
    captured.CapturedUpdates._capture = capture
    assert (trainer.state, metrics) == with_graphs
    captured.DEVICE_TYPE, device_type = "none", captured.DEVICE_TYPE
    ordinary = make(game)
    ordinary.initial_state()
    ordinary.run_iterations(0, 4)
    captured.DEVICE_TYPE = device_type
    # padding rounds differently
    torch.testing.assert_close(weights(ordinary), weights(trainer), rtol=0, atol=3e-4)
    return f"{game} {replays}"


def weights(trainer: Any) -> torch.Tensor:
    """Return all weights of the agents."""
    return torch.cat([p.detach().flatten().cpu() for p in trainer.combined_agents.parameters()])


def no_capture(*unused: object) -> None:
    """Capture nothing."""


def wait(game: str) -> str:
    """Play with a loss that waits for the device."""
    metrics = PpoObjective.metrics

    def waits(self: Any, log_ratio: Any, mask: Any) -> Any:
        float(log_ratio.sum())
        return metrics(self, log_ratio, mask)

    PpoObjective.metrics = waits
    try:
        return compare(game)
    finally:
        PpoObjective.metrics = metrics


if __name__ == "__main__":
    emulated_device.install()
    fake_graphs.install()
    for chosen in sys.argv[1:]:
        kind, _, rest = chosen.partition(":")
        sys.stdout.write((wait(rest) if kind == "wait" else compare(chosen)) + "\n")
