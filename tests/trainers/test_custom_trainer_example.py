"""The example's two trainers run in a plain loop, learn, and follow the guide's contract."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ratchet.errors import DataError, ParameterError
from trainers.registry import trainer_class
from trainers.staged import runs_in_stages
from trainers.tensordict.objectives.ppo import ClippedPpoObjective
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def custom(tiny):
    def make(class_name, **changes):
        reference = {"module_path": "custom_trainer.py", "class_name": class_name}
        hyper_params = tiny.parameters(trainer=reference, **changes)
        found = trainer_class(hyper_params, EXAMPLES)
        instance = tiny.build_scenario_instance(
            hyper_params,
            tiny.ExperimentSettings(),
            datasets={"train": tiny.dataset(20, 1), "test": tiny.dataset(10, 2)},
            trainer_type=found.trainer_type,
        )
        return found(hyper_params, instance, tiny.ExperimentSettings())

    return make


def test_a_custom_loss_is_enough_for_training_in_stages(custom):
    whole = custom("AdvantageActorCriticTrainer")
    whole.train()
    staged = custom("AdvantageActorCriticTrainer")
    assert runs_in_stages(type(staged))
    first = staged.initial_state()
    staged.run_iterations(0, 1)
    staged.run_iterations(1, 3)
    assert staged.state == whole.state
    assert staged.state != first
    assert whole.test_results["test"] == staged.run_test()
    assert {"loss_objective", "loss_critic", "loss_entropy"} <= whole.history[0].values.keys()


@pytest.mark.parametrize("name", ["build_loss", "_get_loss_module_and_gae"])
def test_the_loss_can_be_replaced_by_either_name_of_its_method(tiny, name):
    def replaced(self):
        loss, estimator = getattr(super(trainer, self), name)()
        loss.replaced = True
        return loss, estimator

    trainer = type("ReplacedLoss", (VanillaPpoTrainer,), {name: replaced})
    instance = tiny.trainer(tiny.parameters()).scenario_instance
    built = trainer(tiny.parameters(), instance, tiny.ExperimentSettings())
    assert built.components.loss_module.replaced
    assert trainer.build_loss is trainer._get_loss_module_and_gae


def test_a_metric_of_a_loss_replaces_no_other(tiny):
    class MyLoss(ClippedPpoObjective):
        def forward(self, tensordict):
            return super().forward(tensordict).set("num_episodes", torch.tensor(0.5))

    trainer = tiny.trainer(tiny.parameters())
    trainer.components.loss_module.__class__ = MyLoss
    with pytest.raises(
        DataError, match=r"MyLoss\.forward: its metric 'num_episodes' \(0\.5\) would"
    ):
        trainer.train()


def test_a_trainer_without_a_loss_is_refused(tiny, tmp_path):
    text = "from trainers import TensorDictRlTrainer\nclass Mine(TensorDictRlTrainer): ...\n"
    (tmp_path / "mine.py").write_text(text)
    reference = {"module_path": "mine.py", "class_name": "Mine"}
    with pytest.raises(ParameterError, match=r"Mine does not implement \['build_loss'\]"):
        trainer_class(tiny.parameters(trainer=reference), tmp_path)


def test_a_custom_loop_runs_and_is_reproducible(custom):
    one, other = custom("HillClimbingTrainer"), custom("HillClimbingTrainer")
    one.train()
    other.train()
    assert one.history == other.history
    rewards = [record.values["best_reward"] for record in one.history if record.stage == "train"]
    assert len(rewards) == 3
    assert rewards == sorted(rewards)
    assert one.get_total_num_iterations() == 5


@pytest.mark.slow
def test_the_example_runs_as_its_header_says():
    root = EXAMPLES.parent
    command = [sys.executable, "examples/custom_trainer.py"]
    done = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "advantage_actor_critic: 4 iterations" in done.stdout
    assert "hill_climbing: 4 iterations" in done.stdout
