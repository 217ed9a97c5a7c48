"""A custom batched environment, by registered name and by file, trains like any other."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError
from ratchet.protocols import build_protocol_handler
from ratchet.scenarios import build_scenario_instance
from ratchet.store.fingerprint import code_fingerprint
from tasks.tensordict.keys import ArmKeys

EXAMPLES = Path(__file__).parents[3] / "examples"
FILE = "custom_environment.py:Handover"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location(
        "custom_environment", EXAMPLES / "custom_environment.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["custom_environment"] = module
    spec.loader.exec_module(module)
    return module


def parameters(dataset=FILE, **section):
    return HyperParameters(
        scenario="gymnasium", trainer="vanilla_ppo", dataset=dataset, gymnasium=section
    )


def test_both_agents_learn(example):
    before, after = example.train(num_iterations=8)
    assert after["guide.mean_episode_reward"] == after["follower.mean_episode_reward"]
    assert after["guide.mean_episode_reward"] > before["guide.mean_episode_reward"] + 10


def test_the_file_is_named_relative_to_the_experiments_folder():
    hyper_params = parameters(environment_kwargs={"width": 2.0})
    instance = build_scenario_instance(hyper_params, ExperimentSettings(), base_dir=EXAMPLES)
    assert instance.agent_names == ("guide", "follower")
    assert instance.train_environment.dynamics.width == 2.0
    with pytest.raises(ParameterError, match="there is no file"):
        build_protocol_handler(hyper_params, base_dir=EXAMPLES.parent)


@pytest.mark.slow
def test_the_environments_code_is_part_of_every_key_and_its_path_is_not(tmp_path):
    copy = tmp_path / "custom_environment.py"
    copy.write_text((EXAMPLES / "custom_environment.py").read_text())
    here = ArmKeys("main", parameters(), base_dir=str(EXAMPLES))
    there = ArmKeys("main", parameters("../" + tmp_path.name + "/" + FILE), base_dir=str(tmp_path))
    assert here.train(0, 1).parameters == there.train(0, 1).parameters
    before = there.train(0, 1).key
    copy.write_text(copy.read_text().replace("STEP = 0.1", "STEP = 0.2"))
    edited = ArmKeys("main", parameters("../" + tmp_path.name + "/" + FILE), base_dir=str(tmp_path))
    assert edited.train(0, 1).key != before
    assert edited.build_scenario().key == there.build_scenario().key


def test_an_edit_of_one_built_in_environment_leaves_the_others_alone():
    modules = {}
    for name in ("CartPole-v1", "Pendulum-v1"):
        handler = build_protocol_handler(parameters(name))
        modules[name] = set(code_fingerprint(*handler.source_classes).modules)
    assert "ratchet.scenarios.gymnasium.cartpole" in modules["CartPole-v1"]
    assert "ratchet.scenarios.gymnasium.pendulum" not in modules["CartPole-v1"]
    assert "ratchet.scenarios.gymnasium.pendulum" in modules["Pendulum-v1"]
