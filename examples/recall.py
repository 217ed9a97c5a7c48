"""Custom pixel environment that requires memory.

Run it:    python examples/recall.py
Train it:  ratchet run experiments/recall.yaml      (the report shows videos of test episodes)

Observations are images (bytes), so agents have convolutions; agents._default.recurrence adds a
recurrent layer.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Discrete

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.gymnasium.registry import ENVIRONMENTS
from trainers.registry import build_trainer

Image = npt.NDArray[np.uint8]
SIDE = 12


@ENVIRONMENTS.register("recall-v0")
class Recall(gymnasium.Env[Image, int]):
    """A patch appears left or right; ``delay`` dark steps later, naming its side earns 1 or -1."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}  # noqa: RUF012 -- gymnasium's API
    observation_space = Box(0, 255, (SIDE, SIDE), np.uint8)
    action_space = Discrete(2)

    def __init__(self, delay: int = 3, render_mode: str | None = None) -> None:
        self.delay, self.render_mode = delay, render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        """Show the patch on a side that depends on the seed."""
        super().reset(seed=seed)
        self.steps, self.side = 0, int(self.np_random.integers(2))
        return self._image(), {}

    def step(self, action: int) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Advance one step; only the action in the last step is rewarded."""
        self.steps += 1
        over = self.steps > self.delay
        paid = 0.0 if not over else 1.0 if action == self.side else -1.0
        return self._image(), paid, over, False, {}

    def render(self) -> Image:  # type: ignore[override] # gymnasium supports other modes too
        """Return the image in RGB."""
        return np.repeat(self._image()[..., None], 3, -1)

    def _image(self) -> Image:
        image = np.zeros((SIDE, SIDE), np.uint8)
        if self.steps == 0:
            image[4:8, 1 + 6 * self.side : 5 + 6 * self.side] = 255
        elif self.steps == self.delay:
            image[10:, :] = 255  # now
        return image


def train(num_iterations: int, recurrence: str | None = "gru") -> float:
    """Train by PPO; return the mean test return: 1 for perfect recall, 0 for guessing."""
    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="recall-v0",
        gymnasium={"num_envs": 16, "num_test_episodes": 40},
        agents={
            "_default": {
                "convolutions": [[8, 3, 2]],
                "hidden_sizes": [32],
                "recurrence": recurrence,
                "recurrent_size": 16,
            }
        },
        rl={
            "frames_per_batch": 512,
            "minibatch_size": 128,
            "num_epochs": 4,
            "num_iterations": num_iterations,
            "lr": 0.005,
            "gamma": 0.99,
        },
    )
    settings = ExperimentSettings()
    scenario_instance = build_scenario_instance(hyper_params, settings)
    trainer = build_trainer(hyper_params, scenario_instance, settings)
    trainer.initial_state()
    trainer.run_iterations(0, num_iterations)
    return float(trainer.run_test().metrics["agent.mean_episode_reward"])


def main() -> None:
    """Compare a recurrent agent with a memoryless one."""
    torch.set_num_threads(1)
    print(f"with a GRU: mean return {train(15):.2f}")
    print(f"without:    mean return {train(15, recurrence=None):.2f}")


if __name__ == "__main__":
    main()
