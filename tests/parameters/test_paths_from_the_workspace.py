"""A user's files are found from the experiment file's folder, then from the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment
from trainers.registry import trainer_class

TRAINER = """
from trainers import SelfHostedTrainer

class MyCustomTrainer(SelfHostedTrainer):
    def _prepare_batch(self, batch):
        return self._compute_advantage(batch), {}
"""
EXPERIMENT = """
scenario: language_task
dataset: reverse
trainer:
  custom_trainer_module_path: "recipe/my_task/my_trainer.py"
  custom_trainer_class_name: "MyCustomTrainer"
  total_train_steps: 2
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "recipe" / "my_task"
    folder.mkdir(parents=True)
    (folder / "my_trainer.py").write_text(TRAINER)
    (folder / "my_task.yaml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_path_from_the_workspace_is_found_by_every_process(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = load_experiment("recipe/my_task/my_task.yaml")
    trainer = experiment.hyper_params.to_dict()["trainer"]
    assert trainer == {"module_path": "my_trainer.py", "class_name": "MyCustomTrainer"}
    monkeypatch.chdir(workspace.parent)
    found = trainer_class(experiment.hyper_params, experiment.settings.base_dir)
    assert found.learner_class.__name__ == "MyCustomTrainer"


def test_the_same_path_to_two_files_is_refused(workspace: Path) -> None:
    other = workspace / "recipe" / "my_task" / "recipe" / "my_task" / "my_trainer.py"
    other.parent.mkdir(parents=True)
    other.write_text(TRAINER)
    with pytest.raises(ParameterError, match=r"got two files, .*recipe/my_task/recipe/.*expected"):
        load_experiment("recipe/my_task/my_task.yaml")


def test_a_path_on_the_command_line_starts_from_the_workspace_too(workspace: Path) -> None:
    (workspace / "other.py").write_text(TRAINER)
    experiment = load_experiment(
        "recipe/my_task/my_task.yaml", ["trainer=other.py:MyCustomTrainer"]
    )
    assert experiment.hyper_params.trainer == "../../other.py:MyCustomTrainer"
