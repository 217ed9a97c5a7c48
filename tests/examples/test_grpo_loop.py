"""The loop of the example computes what the trainer ``grpo`` computes, bit for bit."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import torch

from ratchet.experiment_files.loading import load_experiment
from ratchet.scenarios import build_scenario_instance
from trainers.language.self_hosted import SelfHostedTrainer
from trainers.language.trainer import LanguageTrainer
from trainers.registry import build_trainer

LANGUAGE = Path(__file__).parents[2] / "examples" / "language"
SMALL = (
    *("rl.num_iterations=3", "language_task.num_train=40", "language_task.num_test=8"),
    *("language.tasks_per_step=4", "agents._default.warm_up.num_steps=20"),
)


def test_the_loop_has_the_numbers_of_the_trainer() -> None:
    experiment = load_experiment(LANGUAGE / "custom_task.yaml", SMALL)
    loop = runpy.run_path(str(LANGUAGE / "grpo_loop.py"))["GrpoLoop"](
        experiment.hyper_params, experiment.settings
    )
    metrics = list(loop.train())

    given = experiment.hyper_params, experiment.settings
    base_dir = Path(str(experiment.settings.base_dir))
    instance = build_scenario_instance(*given, base_dir=base_dir)
    trainer = build_trainer(given[0], instance, given[1], base_dir)
    assert isinstance(trainer, LanguageTrainer)
    trainer.train()
    recorded = [record.values for record in trainer.history if record.stage == "train"]
    assert metrics == [{name: each[name] for name in metrics[0]} for each in recorded]
    assert any(each["actor/grad_norm"] for each in metrics), "something is learned"
    learner = trainer.learner
    assert isinstance(learner, SelfHostedTrainer)
    pairs = zip(loop.model.parameters(), learner.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_the_loop_fits_one_page_and_prints_its_iterations() -> None:
    path = LANGUAGE / "grpo_loop.py"
    assert len(path.read_text().splitlines()) <= 150
    command = [sys.executable, str(path), str(LANGUAGE / "custom_task.yaml"), *SMALL]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split()[:2] for line in printed.splitlines()] == [
        [str(iteration), "rollout/reward"] for iteration in range(3)
    ]
