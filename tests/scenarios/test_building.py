"""From parameters to a scenario instance, and scenarios by name."""

import subprocess
import sys

import pytest
import torch

import ratchet.scenarios
from ratchet.errors import DataError, ParameterError, UnknownNameError
from ratchet.parameters import ExperimentSettings
from ratchet.scenarios import ScenarioInstance, build_scenario_instance, register_scenario
from ratchet.scenarios.base import Scenario
from ratchet.scenarios.registry import SCENARIOS, build_scenario


def test_instance_has_everything_a_trainer_needs(small_datasets, small_parameters):
    hyper_params = small_parameters(rl={"frames_per_batch": 64})
    datasets = {**small_datasets, "easy": small_datasets["test"]}
    instance = build_scenario_instance(hyper_params, ExperimentSettings(), datasets=datasets)
    assert isinstance(instance, ScenarioInstance)
    assert instance.agent_names == ("prover", "verifier")
    assert list(instance.agents) == ["prover", "verifier"]
    assert instance.train_dataset == small_datasets["train"]
    assert list(instance.datasets) == ["train", "test", "easy"]
    assert list(instance.test_environments) == ["test", "easy"]
    assert instance.train_environment.train
    assert not instance.test_environment.train


def test_agents_play_an_episode(small_datasets, small_parameters):
    instance = build_scenario_instance(
        small_parameters(rl={"frames_per_batch": 64}), ExperimentSettings(), datasets=small_datasets
    )
    environment, agents = instance.train_environment, instance.combined_agents
    td = environment.reset(torch.arange(8), torch.arange(8))
    generators = {name: torch.Generator().manual_seed(0) for name in instance.agent_names}
    for _ in range(environment.max_rounds):
        td = environment.step(agents.act(td, generators=generators))
    assert td["done"].all()


def test_datasets_are_made_when_not_given(small_datasets, small_parameters):
    instance = build_scenario_instance(small_parameters(), ExperimentSettings())
    assert instance.datasets == small_datasets


def test_missing_datasets_are_named(small_datasets, small_parameters):
    with pytest.raises(DataError, match="train and test"):
        build_scenario_instance(
            small_parameters(), ExperimentSettings(), datasets={"train": small_datasets["train"]}
        )


def test_scenarios_by_name():
    assert "graph_isomorphism" in SCENARIOS.names()
    assert isinstance(build_scenario("graph_isomorphism"), Scenario)
    with pytest.raises(UnknownNameError, match="graph_isomorphism"):
        build_scenario("graph_isomorfism")

    with pytest.raises(ParameterError, match="taken"):

        @register_scenario("graph_isomorphism")
        class Other(Scenario):
            pass

    with pytest.raises(AttributeError, match="nothing"):
        _ = ratchet.scenarios.nothing


def test_parameters_are_found_without_torch():
    code = (
        "import sys\n"
        "from ratchet.parameters import HyperParameters\n"
        "HyperParameters(scenario='graph_isomorphism', trainer='vanilla_ppo', dataset='er50')\n"
        "import ratchet.scenarios\n"
        "assert 'torch' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
