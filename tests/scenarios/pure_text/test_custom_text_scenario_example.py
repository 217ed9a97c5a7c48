"""The example's scenario of chat models, by file in an experiment file, with its own section."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flows.planning.plan import plan
from flows.runs.resolve import resolve_file
from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment
from ratchet.plugins import load_module
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer

EXAMPLES = Path(__file__).parents[3] / "examples"
FILE = """\
scenario: plugins/custom_text_scenario.py:Sums
trainer: pure_text_ei
dataset: generated
sums: {num_sums: 20, largest: 9}
agents: {_default: {use_dummy_api: true}}
rl: {num_iterations: 1, rollouts_per_iteration: 4}
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "plugins").mkdir()
    shutil.copy(EXAMPLES / "custom_text_scenario.py", tmp_path / "plugins")
    path = tmp_path / "sums.yaml"
    path.write_text(FILE)
    return path


def test_it_is_played_and_learned_from(file):
    experiment = load_experiment(file, ["sums.num_sums=10"])
    params, settings = experiment.hyper_params, experiment.settings
    instance = build_scenario_instance(params, settings, base_dir=file.parent)
    assert {side: len(data) for side, data in instance.datasets.items()} == {"train": 8, "test": 2}
    trainer = build_trainer(params, instance, settings, settings.base_dir)
    trainer.train()
    assert trainer.state.train_loop_stage == "done"


def test_its_stages_are_planned_and_its_section_is_in_their_keys(file, monkeypatch):
    monkeypatch.chdir(file.parent)

    def keys(*changes):
        return {stage.stage: stage.key for stage in plan(resolve_file("sums.yaml", changes))}

    assert set(keys()) >= {"build_scenario", "sample_rollouts", "test"}
    assert keys()["build_scenario"] != keys("sums.largest=8")["build_scenario"]


def test_mistakes_in_its_section_are_told(file):
    with pytest.raises(ParameterError, match=r"sums\.large: unknown .* Did you mean 'largest'\?"):
        load_experiment(file, ["sums.large=3"])


def test_the_example_shows_what_its_header_says(capsys):
    load_module(EXAMPLES / "custom_text_scenario.py").main()
    assert "accuracy: " in capsys.readouterr().out
