"""GRPO in one loop, from the parts of the trainer ``grpo``, and with its numbers.

A run splits these steps into cached stages; here nothing is stored.

Run it:  python examples/language/grpo_loop.py examples/language/custom_task.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ratchet.algorithms.language.group_advantages import group_advantages
from ratchet.algorithms.language.losses import ppo_clip
from ratchet.algorithms.language.token_weights import token_weights, weighted_sum
from ratchet.experiment_files.loading import load_experiment
from ratchet.language_models.engines.rollouts import RolloutEngine, make_engine
from ratchet.language_models.local.model import LanguageModel
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.rollouts.batch import Batch
from ratchet.rollouts.dataset import DataOrder
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.language_task.instance import LanguageTaskInstance, SampledModel
from trainers.language.models import build_model
from trainers.language.optimization import LanguageOptimizer


class GrpoLoop:
    """Trains a language model on the tasks of an experiment, one optimizer step per iteration."""

    def __init__(self, hyper_params: HyperParameters, settings: ExperimentSettings) -> None:
        self.hyper_params = hyper_params
        instance = build_scenario_instance(
            hyper_params, settings, base_dir=Path(settings.base_dir or ".")
        )
        assert isinstance(instance, LanguageTaskInstance)
        self.instance = instance
        (agent,) = instance.agents
        self.temperature = instance.agents[agent].parameters.temperature
        # random weights or a model from files, after supervised training if warm_up is set
        self.model: LanguageModel = build_model(instance, agent, settings)
        self.engine: RolloutEngine = make_engine("in_process", self.model, {})
        self.optimizer = LanguageOptimizer(self.model.parameters(), hyper_params.language.optimizer)

    def train(self) -> Iterator[dict[str, float]]:
        """Run the iterations and yield the metrics of each."""
        params = self.hyper_params
        tasks_per_step, num_iterations = params.language.tasks_per_step, params.rl.num_iterations
        order = DataOrder(params.seed, len(self.instance.train_dataset))
        for iteration in range(num_iterations):
            indices = order.take(iteration * tasks_per_step, tasks_per_step).tolist()
            batch, metrics = self.sample(indices, iteration)
            batch.values["advantages"] = self.compare(batch)
            self.optimizer.set_progress(iteration, num_iterations)
            yield metrics | self.step(batch)
            self.engine.update(self.model)  # the next completions are sampled by the new weights

    def sample(self, places: Sequence[int], iteration: int) -> tuple[Batch, dict[str, float]]:
        """Sample ``language.group_size`` completions of each task, and reward them.

        The batch has B rows of T tokens: prompt, completion, padding.
        """
        models = {"agent": SampledModel(self.engine, self.model.tokenizer)}
        rollouts = self.instance.play("train", places, models, iteration=iteration)
        batch = Batch.from_trajectories(rollouts.trajectories, self.model.pad_token_id)
        batch = batch.remove_redundant_left_padding().remove_redundant_right_padding()
        return batch, dict(rollouts.metrics)

    def compare(self, batch: Batch) -> torch.Tensor:
        """Return each completion's advantage over its group's mean, at all of its tokens [B, T].

        A = (r − mean r) / (std r + 1e-6), Shao et al. 2024, section 4.1.
        """
        metadata = batch.metadata
        advantages = group_advantages(metadata["rewards"], metadata["group_ids"]).advantage
        return advantages.unsqueeze(1) * batch.values["loss_mask"]

    def step(self, batch: Batch) -> dict[str, float]:
        """Take one step on the clipped objective; the sampling policy is the old one."""
        values, grpo = batch.values, self.hyper_params.grpo.settled
        mask = values["loss_mask"]
        scores = self.model.score(
            values["input_ids"], values["attention_mask"], mask, temperature=self.temperature
        )
        old = scores.log_probs.detach()
        clips = {"clip_low": grpo.clip_low, "clip_high": grpo.clip_high}
        objective = ppo_clip(scores.log_probs, old, values["advantages"], mask, **clips)
        loss = weighted_sum(objective.loss, token_weights(mask, grpo.aggregation))
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # of torch
        norm = self.optimizer.step()
        return {"actor/loss": float(loss.detach()), "actor/grad_norm": float(norm)}


def main(path: str, *overrides: str) -> None:
    """Train the model of an experiment file, and print the metrics of each iteration."""
    experiment = load_experiment(path, overrides)
    loop = GrpoLoop(experiment.hyper_params, experiment.settings)
    for iteration, metrics in enumerate(loop.train()):
        metric_names = ("rollout/reward", "actor/loss", "actor/grad_norm")
        print(iteration, "  ".join(f"{name} {metrics[name]:.3g}" for name in metric_names))


if __name__ == "__main__":
    main(*sys.argv[1:])
