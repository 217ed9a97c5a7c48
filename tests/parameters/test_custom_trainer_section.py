"""Overrides of fields in the section of a custom trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.errors import ParameterError
from ratchet.experiment_files import load_experiment

EXPERIMENT = """
scenario: language_task
dataset: reverse
trainer:
  custom_trainer_module_path: mine.py
  custom_trainer_class_name: Mine
  total_train_steps: 20
  algorithm: {my_param: 1.0, policy_loss: reinforce}
arms:
  other: {trainer: {custom_trainer_class_name: Other, algorithm: {my_param: 3.0}}}
  known: {trainer: grpo}
"""


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "mine.py").write_text("class Mine: ...\nclass Other: ...\n")
    (tmp_path / "custom.yaml").write_text(EXPERIMENT)
    return tmp_path / "custom.yaml"


def test_the_command_line_changes_it(file):
    changes = ["trainer.total_train_steps=2", "trainer.algorithm.my_param=0.5"]
    given = load_experiment(file, [*changes, "trainer.group_size=3"]).hyper_params
    assert given.rl.num_iterations == 2
    assert given.language.algorithm == {"my_param": 0.5, "policy_loss": "reinforce"}
    assert given.language.group_size == 3
    assert given.trainer_name == "Mine"


def test_an_arm_changes_it(file):
    arms = load_experiment(file).arms
    assert arms["other"].trainer_name == "Other"
    assert arms["other"].language.algorithm == {"my_param": 3.0, "policy_loss": "reinforce"}
    assert arms["other"].rl.num_iterations == 20
    assert arms["known"].trainer == "grpo"


def test_a_sweep_and_a_fork_change_it(file):
    given = load_experiment(file).hyper_params
    changes = {"trainer.total_train_steps": 3, "trainer.algorithm.my_param": 2.0}
    changed = given.replace(changes, file.parent)
    assert changed.rl.num_iterations == 3
    assert changed.language.algorithm["my_param"] == 2.0
    other = given.replace({"trainer.custom_trainer_class_name": "Other"}, file.parent)
    assert other.trainer_name == "Other"


def test_a_name_that_is_not_known_is_said(file):
    with pytest.raises(ParameterError, match=r"trainer\.total_train_step: unknown"):
        load_experiment(file, ["trainer.total_train_step=2"])
