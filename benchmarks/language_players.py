"""GRPO on ``experiments/reverse_grpo.yaml`` with one of two libraries.

Started by ``language_against_trl.py`` as ``language_players.py NAME SEED STEPS``; prints a line of
JSON. Both start from the same weights with the same tasks in the same order. CPU time of this
process on one thread; the rate of completions excludes the first steps.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml

from ratchet import ExperimentSettings, HyperParameters
from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.model import LanguageModel
from ratchet.rollouts.dataset import DataOrder
from ratchet.scenarios.language_task.instance import SampledModel
from ratchet.scenarios.registry import build_scenario_instance
from tasks.stages.driver import exclude_imports_from_collection
from trainers.language.trainer import LanguageTrainer
from trainers.registry import trainer_class

EXPERIMENT = Path(__file__).parents[1] / "experiments" / "reverse_grpo.yaml"
FIRST_STEPS = 5
"""Steps excluded from the rate, since they include imports and allocations."""


@dataclass
class Trained:
    """End of each step, in CPU-seconds of this process, and the trained model."""

    begin: float
    ends: list[float]
    model: LanguageModel


def read_experiment(seed: int, steps: int) -> HyperParameters:
    """Return the experiment's parameters, tested at the training temperature."""
    content = yaml.safe_load(EXPERIMENT.read_text(encoding="utf-8"))
    content |= {"seed": seed, "rl": {"num_iterations": steps}}
    content["language"]["test_temperature"] = 1.0
    del content["settings"]
    return HyperParameters(**content)


def build(hyper_params: HyperParameters) -> LanguageTrainer:
    """Build the trainer with its warmed-up model."""
    settings = ExperimentSettings(progress="none")
    kind = trainer_class(hyper_params)
    instance = build_scenario_instance(hyper_params, settings, trainer_type=kind.trainer_type)
    trainer = kind(hyper_params, instance, settings)
    assert isinstance(trainer, LanguageTrainer)
    trainer.initial_state()
    return trainer


def exact_match(trainer: LanguageTrainer, model: LanguageModel) -> float:
    """Return the exact match on the test set."""
    instance = trainer.scenario_instance
    indices = range(len(instance.test_dataset))
    sampled = SampledModel(InProcessEngine(model), model.tokenizer)
    models = dict.fromkeys(instance.agents, sampled)
    played = instance.play("test", indices, models, iteration=0, is_validation=True)
    return fmean(trajectory.metrics["exact_match"] for trajectory in played.trajectories)


def train_here(trainer: LanguageTrainer, folder: Path) -> Trained:
    """Train with Ratchet, one iteration at a time, with the garbage collector as in a run."""
    exclude_imports_from_collection()
    begin, ends = time.process_time(), []
    for step in range(trainer.num_train_iterations):
        trainer.run_iterations(step, step + 1)
        ends.append(time.process_time())
    trainer.learner.save_model(folder / "trained")
    return Trained(begin, ends, load_language_model("trained", base_dir=folder))


def train_with_trl(trainer: LanguageTrainer, folder: Path) -> Trained:
    """Train with TRL: generation by transformers in float32, one batch per step."""
    import datasets
    import transformers
    import trl

    hyper_params, instance = trainer.hyper_params, trainer.scenario_instance
    order = DataOrder(hyper_params.seed, len(instance.train_dataset))
    count = trainer.num_train_iterations * hyper_params.language.tasks_per_step
    tasks = [instance.train_dataset[index] for index in order.take(0, count).tolist()]
    evaluate = instance.train_environment.rules.evaluator
    assert evaluate is not None

    def reward(completions: list[Any], task: list[int], **_: object) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        pairs = zip(task, texts, strict=True)
        return [evaluate.evaluate(tasks[index], text, []).reward for index, text in pairs]

    class Ends(transformers.TrainerCallback):
        """Callback that records the end of each step."""

        def on_step_end(self, *_: object, **__: object) -> None:
            ends.append(time.process_time())

    ends: list[float] = []
    trainer.learner.save_model(folder / "begun")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "begun", dtype="float32")
    prompts = [[{"role": "user", "content": task.messages[0].content}] for task in tasks]
    peer = trl.GRPOTrainer(
        model=model,
        processing_class=transformers.AutoTokenizer.from_pretrained(
            folder / "begun", padding_side="left"
        ),
        reward_funcs=reward,
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts, "task": range(count)}),
        optimizers=_optimizer(model, trainer),
        callbacks=[Ends()],
        args=trl.GRPOConfig(output_dir=str(folder / "trl"), **_settings(trainer)),
    )
    peer.remove_callback(transformers.trainer_callback.PrinterCallback)
    begin = time.process_time()
    peer.train()
    assert torch.get_num_threads() == 1
    model.save_pretrained(folder / "begun")  # next to its tokenizer
    return Trained(begin, ends, load_language_model("begun", base_dir=folder))


def _optimizer(model: torch.nn.Module, trainer: LanguageTrainer) -> tuple[Any, Any]:
    """Return the experiment's optimizer and schedule for a transformers model."""
    adam, steps = trainer.hyper_params.language.optimizer, trainer.num_train_iterations
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=adam.lr,
        betas=(adam.beta1, adam.beta2),
        eps=adam.eps,
        weight_decay=adam.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (1 - step / steps) * min(1, (step + 1) / (adam.warmup_steps + 1))
    )
    return optimizer, schedule


def _settings(trainer: LanguageTrainer) -> dict[str, Any]:
    """Return the experiment's settings as arguments of TRL."""
    hyper_params, agent = trainer.hyper_params, trainer.scenario_instance.agents["agent"].parameters
    language, loss = hyper_params.language, hyper_params.grpo.settled
    aggregations = {"token_mean": "dapo", "sequence_mean_token_mean": "grpo"}
    return {
        "max_steps": trainer.num_train_iterations,
        "per_device_train_batch_size": language.tasks_per_step * language.group_size,
        "num_generations": language.group_size,
        "num_iterations": language.num_epochs,
        "shuffle_dataset": False,
        "max_completion_length": agent.max_tokens,
        "temperature": agent.temperature,
        "loss_type": aggregations[loss.aggregation],
        "scale_rewards": loss.advantage_scale,
        "epsilon": loss.clip_low,
        "epsilon_high": loss.clip_high,
        "beta": 0.0,
        "max_grad_norm": language.optimizer.max_grad_norm,
        "seed": hyper_params.seed,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


PLAYERS: dict[str, Callable[[LanguageTrainer, Path], Trained]] = {
    "ratchet": train_here,
    "trl": train_with_trl,
}


def play(name: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one library with a seed; return its results."""
    torch.set_num_threads(1)
    begin = time.process_time()
    trainer = build(read_experiment(seed, steps))
    supervision = time.process_time() - begin
    before = exact_match(trainer, trainer.learner.model)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        trained = PLAYERS[name](trainer, Path(folder))
    language = trainer.hyper_params.language
    first = min(FIRST_STEPS, steps // 2)
    later = trained.ends[-1] - trained.ends[first - 1]
    answers = (steps - first) * language.tasks_per_step * language.group_size
    return {
        "before": before,
        "after": exact_match(trainer, trained.model),
        "rate": answers / later,
        "seconds": supervision + trained.ends[-1] - trained.begin,
        "supervision": supervision,
    }


if __name__ == "__main__":
    print(json.dumps(play(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
