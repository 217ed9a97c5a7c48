"""Custom TorchRL trainer with custom hooks, run in a plain loop.

Implement ``build_trainer()`` and return the trainer with its hooks registered. Ratchet calls hooks
in the library's order, saves their states, splits training into stages and resumes it. In an
experiment file: ``trainer: {module_path: custom_torchrl_trainer.py, class_name: CustomTrainer}``.
Run with ``python examples/custom_torchrl_trainer.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import A2CLoss
from torchrl.objectives.value import GAE
from torchrl.trainers import BatchSubSampler, LogScalar, TrainerHookBase
from torchrl.trainers import Trainer as LibraryTrainer

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers import TorchRlTrainer


class LongestEpisode(TrainerHookBase):
    """Hook that logs the longest episode so far; its state is saved with the trainer's."""

    def __init__(self) -> None:
        self.longest = 0

    def __call__(self, batch: TensorDictBase) -> dict[str, Any]:
        """Update the maximum from a collected batch."""
        self.longest = max(self.longest, int(batch["next", "step_count"].max()))
        return {"longest_episode": self.longest, "log_pbar": False}

    def state_dict(self) -> dict[str, Any]:
        """Return the maximum."""
        return {"longest": self.longest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the maximum."""
        self.longest = state_dict["longest"]

    def register(self, trainer: LibraryTrainer, name: str = "longest_episode") -> None:
        """Register the hook to run before the optimization steps of a batch."""
        trainer.register_op("pre_steps_log", self)
        trainer.register_module(name, self)


class CustomTrainer(TorchRlTrainer):
    """Advantage actor-critic from TorchRL components."""

    def build_trainer(self) -> LibraryTrainer:
        """Build the TorchRL trainer and register its hooks."""
        rl = self.hyper_params.rl
        environment = TransformedEnv(
            GymEnv(self.hyper_params.dataset), Compose(StepCounter(), RewardSum())
        )
        policy = ProbabilisticActor(
            TensorDictModule(MLP(4, 2, num_cells=[32]), ["observation"], ["logits"]),
            in_keys=["logits"],
            distribution_class=OneHotCategorical,
            return_log_prob=True,
        )
        value = ValueOperator(MLP(4, 1, num_cells=[32]), in_keys=["observation"])
        loss = A2CLoss(policy, value, entropy_coeff=0.001)
        trainer = LibraryTrainer(
            collector=Collector(environment, policy, frames_per_batch=rl.frames_per_batch),
            total_frames=rl.num_iterations * rl.frames_per_batch,
            frame_skip=1,
            optim_steps_per_batch=rl.num_epochs,
            loss_module=loss,
            optimizer=torch.optim.Adam(loss.parameters(), lr=rl.lr),
            clip_norm=rl.max_grad_norm,
        )
        advantages = GAE(gamma=rl.gamma, lmbda=rl.lmbda, value_network=value, average_gae=True)
        trainer.register_op("batch_process", advantages)
        LogScalar(("next", "reward"), "mean_reward").register(trainer)
        LongestEpisode().register(trainer)
        BatchSubSampler(rl.minibatch_size).register(trainer)
        return trainer


def main() -> None:
    """Train for a few iterations and print the metrics."""
    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer={"module_path": "custom_torchrl_trainer.py", "class_name": "CustomTrainer"},
        dataset="CartPole-v1",
        gymnasium={"num_test_episodes": 5},
        torchrl={"evaluation_period": 2, "evaluation_episodes": 2},
        rl={"num_iterations": 4, "frames_per_batch": 200, "minibatch_size": 100, "gamma": 0.99},
    )
    settings = ExperimentSettings()
    instance = build_scenario_instance(hyper_params, settings)
    trainer = CustomTrainer(hyper_params, instance, settings)
    trainer.train()
    for record in trainer.history:
        rounded = {name: round(value, 3) for name, value in record.values.items()}
        print(record.stage, record.iteration, rounded)


if __name__ == "__main__":
    main()
