"""Custom batched environment, and agents trained in it.

Run it:    python examples/custom_environment.py
Train it:  scenario: gymnasium
           dataset: examples/custom_environment.py:Handover      (in an experiment file)

All episodes are one batch of tensors, so a step of 800 episodes costs little more than one of 8.
Subclasses of gymnasium.Env or pettingzoo.ParallelEnv are named the same way and simulated singly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.gymnasium.dynamics import Dynamics, State, Transition
from ratchet.scenarios.gymnasium.registry import register_dynamics
from ratchet.scenarios.gymnasium.spaces import AgentSpace, DiscreteActions
from trainers.registry import build_trainer

LEFT_STAY_RIGHT = DiscreteActions((3,))
STEP = 0.1


@register_dynamics("handover-v0")
class Handover(Dynamics):
    """Two agents on a line, rewarded for being close to a hidden meeting point.

    Only the guide observes the point; the follower observes the guide.
    """

    max_episode_steps = 20

    def __init__(self, width: float = 1.0) -> None:
        self.width = width

    @property
    def agents(self) -> dict[str, AgentSpace]:
        """Observation and action spaces; each agent observes two positions."""
        return {
            "guide": AgentSpace(2, LEFT_STAY_RIGHT),
            "follower": AgentSpace(2, LEFT_STAY_RIGHT),
        }

    def first_state(self, seeds: Tensor) -> State:
        """Sample random positions of agents and point, which depend only on the seeds."""
        generators = [torch.Generator().manual_seed(seed) for seed in seeds.tolist()]
        drawn = [torch.rand(3, generator=generator) for generator in generators]
        positions = (2 * torch.stack(drawn) - 1).to(seeds.device) * self.width
        return {"agents": positions[:, :2], "point": positions[:, 2]}

    def observe(self, state: State) -> Tensor:
        """Return f32 [E, 2 agents, 2 numbers]."""
        guide, follower = state["agents"].unbind(-1)
        seen = [guide, state["point"], follower, guide]
        return torch.stack(seen, -1).unflatten(-1, (2, 2))

    def step(self, state: State, actions: Tensor) -> Transition:
        """Move both agents simultaneously; both receive the same reward."""
        moves = (actions[..., 0] - 1) * STEP
        agents = (state["agents"] + moves).clamp(-self.width, self.width)
        off = (agents - state["point"].unsqueeze(-1)).abs().sum(-1, keepdim=True)
        never = torch.zeros(len(agents), dtype=torch.bool, device=agents.device)
        return Transition({**state, "agents": agents}, -off.expand(-1, 2), never)


def train(num_iterations: int) -> list[dict[str, float]]:
    """Train both agents by PPO; return the test metrics before and after."""
    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="handover-v0",
        gymnasium={"num_envs": 64},
        agents={"_default": {"hidden_sizes": [32]}},
        rl={
            "frames_per_batch": 1280,
            "minibatch_size": 256,
            "num_epochs": 6,
            "lr": 0.01,
            "gamma": 0.9,
            "loss_critic_type": "l2",
            "use_shared_body": False,
            "num_iterations": num_iterations,
        },
    )
    settings = ExperimentSettings()
    scenario_instance = build_scenario_instance(hyper_params, settings)
    trainer = build_trainer(hyper_params, scenario_instance, settings)
    trainer.initial_state()
    before = trainer.run_test().metrics
    trainer.run_iterations(0, num_iterations)
    return [before, trainer.run_test().metrics]


def main() -> None:
    """Print the mean return before and after training."""
    torch.set_num_threads(1)
    for when, metrics in zip(("before", "after"), train(num_iterations=20), strict=True):
        print(f"{when:>7}: mean return {metrics['guide.mean_episode_reward']:.1f}")


if __name__ == "__main__":
    main()
