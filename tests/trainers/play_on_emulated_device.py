"""A script: an iteration and the tests of some games on the emulated device, a line for each.

Names of games are ``PROTOCOL.TRAINER``, ``zero_knowledge.TRAINER`` or ``gymnasium.DATASET``, and
``told.DATASET`` for networks with the agent's index as input, and a centralised critic.
"""

from __future__ import annotations

import sys
from typing import Any

import emulated_device
import tiny_experiment

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer

AGENTS: dict[str, dict[str, Any]] = {
    "gymnasium": {},
    "told": {"centralised_critic": True, "observes_agent_id": True, "shared_model_group": "all"},
}


def make(kind: str, name: str) -> Any:
    """Build the trainer of a game on the device."""
    settings = ExperimentSettings(device=emulated_device.NAME)
    if kind in AGENTS:
        hyper_params = HyperParameters(
            scenario="gymnasium",
            trainer="vanilla_ppo",
            dataset=name,
            gymnasium={"num_envs": 4, "num_test_episodes": 6, "max_episode_steps": 30},
            agents={"_default": {"hidden_sizes": [16], **AGENTS[kind]}},
            rl={"frames_per_batch": 128, "minibatch_size": 64, "num_iterations": 4},
        )
        instance = build_scenario_instance(hyper_params, settings)
        return build_trainer(hyper_params, instance, settings)
    protocol = {"interaction_protocol": kind}
    if kind == "zero_knowledge":
        protocol = {"protocol_common__zero_knowledge": True}
    hyper_params = tiny_experiment.parameters(
        trainer=name, rl__num_normalization_steps=8, **protocol
    )
    return tiny_experiment.trainer(hyper_params, device=emulated_device.NAME)


def play(game: str) -> int:
    """Train, test, take and load the state; return the number of synchronisations.

    Counted in the second iteration, when all caches exist.
    """
    trainer = make(*game.split("."))
    trainer.initial_state()
    weights = next(iter(trainer.combined_agents.parameters()))
    assert weights.device.type == emulated_device.NAME
    trainer.run_iterations(0, 1)
    before = emulated_device.waits
    trainer.run_iterations(1, 2)
    waits = emulated_device.waits - before
    for dataset in ("test", "train"):
        trainer.run_test(dataset)
    trainer.state = trainer.state
    return waits


if __name__ == "__main__":
    emulated_device.install()
    for chosen in sys.argv[1:]:
        sys.stdout.write(f"{chosen} {play(chosen)}\n")
