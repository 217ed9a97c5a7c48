"""The scenario: from parameters to an instance with data, environments, agents and groups."""

from __future__ import annotations

import pytest

from ratchet.errors import DataError
from ratchet.parameters import ExperimentSettings, HyperParameters
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.scenarios import TextScenario, build_scenario_instance
from ratchet.scenarios.pure_text.environment import PureTextEnvironment
from ratchet.scenarios.registry import SCENARIOS, build_scenario


def parameters(**changes):
    return HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="generated",
        code_validation={"num_train": 8, "num_test": 4},
        **changes,
    )


@pytest.fixture(scope="module")
def datasets():
    return build_scenario("code_validation").build_datasets(parameters())


def test_the_scenario_is_found_by_name():
    assert "code_validation" in SCENARIOS.names()
    assert "pure_text" not in SCENARIOS.names()
    assert isinstance(build_scenario("code_validation"), TextScenario)


def test_an_instance_has_everything_a_text_trainer_needs(datasets):
    instance = build_scenario_instance(
        parameters(),
        ExperimentSettings(),
        datasets={**datasets, "extra": datasets["test"]},
        trainer_type="pure_text",
    )
    assert instance.agent_names == ("prover", "verifier")
    assert list(instance.agents) == ["prover", "verifier"]
    assert isinstance(instance.train_environment, PureTextEnvironment)
    assert instance.train_environment.train
    assert not instance.test_environment.train
    assert list(instance.test_environments) == ["test", "extra"]
    assert instance.combined_agents is None
    agent = instance.agents["verifier"]
    assert agent.name == "verifier"
    assert agent.parameters is agent.whole.parameters
    assert list(instance.shared_model_groups) == ["prover", "verifier"]


def test_agents_may_share_a_model(datasets):
    shared = parameters(
        interaction_protocol="debate", agents={"_default": {"shared_model_group": "all"}}
    )
    instance = build_scenario_instance(shared, ExperimentSettings(), datasets=datasets)
    (group,) = instance.shared_model_groups.values()
    assert list(group.agent_names) == list(instance.agent_names)
    assert all(agent.whole.shared_model_group is group for agent in instance.agents.values())


def test_datasets_are_read_back_through_the_scenario(datasets, tmp_path):
    datasets["train"].save(tmp_path / "train")
    loaded = build_scenario("code_validation").load_dataset(tmp_path / "train")
    assert isinstance(loaded, NestedArrayDictDataset)
    assert loaded == datasets["train"]
    with pytest.raises(DataError):
        build_scenario("code_validation").load_dataset(tmp_path / "nothing")


def test_the_content_of_files_is_part_of_the_data_not_their_place(tmp_path):
    scenario = build_scenario("code_validation")
    assert scenario.data_files(parameters()) == {}
    hashes = []
    for folder, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.jsonl").write_text(text)
        hyper_params = parameters().replace({"dataset": f"jsonl:{tmp_path / folder}"})
        hashes.append(scenario.data_files(hyper_params))
    assert hashes[0] == hashes[1] != hashes[2]
    single = parameters().replace({"dataset": f"jsonl:{tmp_path / 'a' / 'train.jsonl'}"})
    assert scenario.data_files(single) == hashes[0]


def test_the_sandboxed_process_is_part_of_the_data_code():
    modules = {code.__module__ for code in build_scenario("code_validation").data_code()}
    assert any(module.endswith("sandboxed.worker") for module in modules)
