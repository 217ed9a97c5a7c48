"""Trainers as beginners might write them: they keep training state on ``self``.

Also a script that runs all stages of an experiment with one of them, to be killed:
``python -m tests.tasks.naive_trainers FAMILY FOLDER CHANGES``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import deque
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from examples.custom_torchrl_trainer import CustomTrainer
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.store import StageStore
from tasks.stages.driver import run_stages
from tasks.stages.families import AnyKeys, make_keys, open_session
from tests.tasks.phased import PARAMETERS as GRAPHS
from trainers import (
    PureTextRlTrainer,
    RemoteApiTrainer,
    SelfHostedTrainer,
    TensorDictTrainer,
    attach_progress_bar,
)
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer


class Average:
    """Running mean: a custom object."""

    def __init__(self, decay: float) -> None:
        self.decay, self.value = decay, 0.0

    def add(self, value: float) -> float:
        """Add a value and return the mean."""
        self.value = self.decay * self.value + (1 - self.decay) * value
        return self.value


class Keeping:
    """Mixin that changes all its attributes once per iteration and reports sums of them."""

    def _make(self) -> None:
        self._baseline = 0.0
        self._seen = deque([0.0], maxlen=3)
        self._average = Average(0.9)
        self._generator = random.Random(3)
        self._critic = torch.nn.Linear(1, 1)
        self._critic_optimizer = torch.optim.Adam(self._critic.parameters(), lr=0.1)
        self._rule = lambda reward: 2 * reward

    def _note(self, reward: float) -> dict[str, float]:
        self._baseline = 0.9 * self._baseline + 0.1 * self._rule(reward)
        self._seen.append(reward + self._generator.random())
        loss = (self._critic(torch.ones(1, 1)) - reward).square().sum()
        self._critic_optimizer.zero_grad()
        loss.backward()
        self._critic_optimizer.step()
        self._counts = getattr(self, "_counts", 0) + 1
        return {
            "kept/baseline": self._baseline,
            "kept/seen": sum(self._seen),
            "kept/average": self._average.add(reward),
            "kept/critic": loss.item(),
            "kept/counts": float(self._counts),
        }


class NaiveHosted(Keeping, SelfHostedTrainer):
    """Trainer that subtracts a running baseline."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._make()

    def _prepare_batch(self, batch: Any) -> Any:
        rewards = batch.metadata["rewards"]
        metrics = self._note(float(rewards.mean()))
        batch.metadata["advantages"] = rewards - self._baseline
        return batch, metrics


class NaiveRemote(Keeping, RemoteApiTrainer):
    """Trainer that subtracts a running baseline, for a model at a service."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._make()

    def _prepare_trajectories(self, trajectories: Any, metrics: dict[str, Any]) -> Any:
        metrics |= self._note(sum(each.reward for each in trajectories) / len(trajectories))
        for each in trajectories:
            each.advantage = each.reward - self._baseline
        return trajectories


class NaiveNetworks(Keeping, VanillaPpoTrainer):
    """Trainer that adds a running mean to the statistics."""

    def __init__(self, *components: Any) -> None:
        super().__init__(*components)
        self._make()

    def _get_log_stats(
        self, rollouts: Any, mean_loss_vals: Any = None, *, train: bool = True
    ) -> Any:
        stats = super()._get_log_stats(rollouts, mean_loss_vals, train=train)
        if train:
            stats |= self._note(float(rollouts["next", "agents", "reward"].mean()))
        return stats


class NaiveLibrary(Keeping, CustomTrainer):
    """Trainer that logs a running mean from a hook of the library's trainer."""

    def __init__(self, *components: Any) -> None:
        super().__init__(*components)
        self._make()

    def build_trainer(self) -> Any:
        """Add the hook."""
        trainer = super().build_trainer()
        trainer.register_op("pre_steps_log", self._log)
        return trainer

    def _log(self, batch: Any) -> dict[str, Any]:
        return {**self._note(float(batch["next", "reward"].mean())), "log_pbar": False}


class NaiveLoop(TensorDictTrainer):
    """Trainer with a custom loop and a checkpoint after each iteration."""

    def __init__(self, *components: Any) -> None:
        super().__init__(*components)
        self._baseline = 0.0

    def train(self) -> None:
        """Continue from the checkpoint; with KILL_ONCE, be killed in the fourth iteration."""
        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_iterations)
    def _run_train_loop(self, iteration_context: Any) -> None:
        for iteration in range(self.state.iteration, self.hyper_params.rl.num_iterations):
            if iteration == 3 and "KILL_ONCE" in os.environ:
                os.kill(os.getpid(), signal.SIGKILL)
            self._baseline = 0.9 * self._baseline + 0.1 * (1 + iteration)
            self.log_stats({"baseline": self._baseline}, iteration=iteration, stage="train")
            self.state.iteration = iteration + 1
            self.save_checkpoint()
            iteration_context.step()


class NaiveChat(Keeping, PureTextRlTrainer):
    """Trainer that fine-tunes on rollouts above a running baseline."""

    def __init__(self, *components: Any) -> None:
        super().__init__(*components)
        self._make()

    def _stage_create_fine_tune_jobs(self, rollouts: Any) -> None:
        rewards = rollouts["agents", "reward"].sum((1, 2))
        self._note(float(rewards.mean()))
        better = rollouts[rewards >= self._baseline]
        for group in self.shared_model_groups.values():
            group.create_supervised_fine_tune_job(dict.fromkeys(group.agent_names, better))


SMALL = {"layers": 1, "d_model": 8, "heads": 2, "context_length": 32}
LANGUAGE = {
    "scenario": "language_task",
    "dataset": "reverse",
    "rl": {"num_iterations": 6},
    "language_task": {"num_train": 8, "num_test": 2, "reverse": {"length": 2, "num_symbols": 4}},
    "agents": {"_default": {"max_tokens": 3, "small_model": SMALL, "warm_up": {"num_steps": 1}}},
    "language": {"tasks_per_step": 2, "group_size": 2, "optimizer": {"lr": 0.01}},
}
FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "self_hosted": (NaiveHosted, LANGUAGE),
    "remote": (NaiveRemote, LANGUAGE),
    "networks": (
        NaiveNetworks,
        {**GRAPHS, "rl": {**GRAPHS["rl"], "num_iterations": 6}, "pretrain_agents": False},
    ),
    "library": (
        NaiveLibrary,
        {
            "scenario": "gymnasium",
            "dataset": "CartPole-v1",
            "gymnasium": {"num_test_episodes": 2, "num_train_seeds": 4},
            "rl": {"num_iterations": 6, "frames_per_batch": 24, "minibatch_size": 8},
        },
    ),
    "loop": (NaiveLoop, {**GRAPHS, "rl": {"num_iterations": 6}, "pretrain_agents": False}),
    "chat": (
        NaiveChat,
        {
            "scenario": "code_validation",
            "dataset": "generated",
            "nip_protocol": {"max_message_rounds": 3},
            "code_validation": {"num_train": 6, "num_test": 2},
            "rl": {"num_iterations": 4, "rollouts_per_iteration": 6},
            "text_rl": {"test_scheme": "none"},
            "agents": {"_default": {"use_dummy_api": True}},
        },
    ),
}


class NaiveArm:
    """Experiment whose stages this process computes sequentially."""

    def __init__(self, family: str, folder: Path, **changes: Any) -> None:
        trainer, parameters = FAMILIES[family]
        reference = {"module_path": Path(__file__).name, "class_name": trainer.__name__}
        base_dir = str(Path(__file__).parent)
        self.settings = ExperimentSettings(
            home=str(folder), base_dir=base_dir, iterations_per_task=2, progress="none"
        )
        self.keys: AnyKeys = make_keys(
            "main",
            HyperParameters(**{**parameters, "trainer": reference}).replace(changes),
            base_dir=base_dir,
        )
        self.store = StageStore(self.settings.store_url, reserve_bytes=0)

    def work(self) -> dict[tuple[str, int], dict[str, float]]:
        """Compute missing stages; return all metrics by stage and iteration."""
        with closing(open_session(self.keys, self.settings, self.store)) as session:
            return {
                (done.call.name, each.iteration): dict(each.values)
                for done in run_stages(session)
                for each in done.manifest.metrics
            }


if __name__ == "__main__":
    torch.set_num_threads(1)
    NaiveArm(sys.argv[1], Path(sys.argv[2]), **json.loads(sys.argv[3])).work()
