"""The shipped experiment on digits learns: alone by supervision, and by reward in a game."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet import ExperimentSettings
from ratchet.experiment_files.loading import load_experiment
from ratchet.scenarios import build_scenario_instance
from ratchet.statistics import accuracy
from trainers.registry import build_trainer, trainer_class

EXPERIMENT = Path(__file__).parents[3] / "experiments" / "digits.yaml"


def trained(hyper_params):
    settings = ExperimentSettings()
    kind = trainer_class(hyper_params).trainer_type
    instance = build_scenario_instance(hyper_params, settings, trainer_type=kind)
    trainer = build_trainer(hyper_params, instance, settings)
    trainer.train()
    return trainer


@pytest.mark.slow
def test_a_verifier_alone_learns_digits_by_supervision():
    trainer = trained(load_experiment(EXPERIMENT).arms["supervised"])
    found = accuracy(trainer.test_results["test"].table)
    assert found.n == 344
    assert found.low > 0.9


@pytest.mark.slow
def test_two_classes_are_told_apart_too():
    chosen = (
        load_experiment(EXPERIMENT)
        .arms["supervised"]
        .replace(
            {
                "dataset_options.binarification_method": "select_two",
                "dataset_options.selected_classes": (3, 8),
                "solo_agent.num_epochs": 12,
                "solo_agent.batch_size": 16,
            }
        )
    )
    found = accuracy(trained(chosen).test_results["test"].table)
    assert found.low > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("pretrained", [False, True])
def test_agents_learn_to_play_by_reward(pretrained):
    shipped = load_experiment(EXPERIMENT).hyper_params
    trainer = trained(shipped.replace({"pretrain_agents": pretrained}))
    curve = [
        record.values["verifier.accuracy"] for record in trainer.history if record.stage == "train"
    ]
    assert sum(curve[:2]) / 2 < 0.65
    found = accuracy(trainer.test_results["test"].table)
    assert found.low > 0.85
