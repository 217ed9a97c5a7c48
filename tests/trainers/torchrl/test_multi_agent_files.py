"""Files of the shape of the library's for several agents run unchanged, resume and are tested."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ratchet.experiment_files.loading import load_experiment
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer

PATH = Path(__file__).with_name("multi_agent_files.py")
SPEC = importlib.util.spec_from_file_location("multi_agent_files", PATH)
FILES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(FILES)
ALGORITHMS = {"mappo": "ppo", "ippo": "ppo", "maddpg": "ddpg", "iddpg": "ddpg"}
ALGORITHMS |= {"masac": "sac", "isac": "sac", "qmix": "dqn", "vdn": "dqn", "iql": "dqn"}
ASKED = [
    "torchrl.batches_per_iteration=1",
    "torchrl.evaluation_period=1",
    "torchrl.evaluation_episodes=1",
    "gymnasium.num_test_episodes=2",
]
FAST = ("qmix",)
PARAMETERS = [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in FILES.NAMES
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    FILES.write_files(folder)
    return folder


def made(experiment):
    params, settings = experiment.hyper_params, experiment.settings
    return build_trainer(params, build_scenario_instance(params, settings), settings)


@pytest.mark.slow
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_file_for_several_agents_trains_resumes_evaluates_and_is_tested(files, name):
    pytest.importorskip("vmas", reason="VMAS is not installed")
    experiment = load_experiment(files / f"{name}.yaml", ASKED)
    named = experiment.hyper_params
    assert (named.trainer, named.dataset) == (f"torchrl_{ALGORITHMS[name]}", "balance")
    whole, cut, resumed = (made(experiment) for _ in range(3))
    assert whole.initial_state() == cut.initial_state()
    metrics = whole.run_iterations(0, 3)
    cut.run_iterations(0, 1)
    resumed.state = cut.state
    assert resumed.run_iterations(1, 3) == metrics[1:]
    assert resumed.state == whole.state != cut.state
    assert all(each["evaluation_length"] == 5 for each in metrics)
    assert len({each["r_evaluation"] for each in metrics} | {metrics[0]["episode_return"]}) > 1
    result = whole.run_test()
    assert "agents.mean_episode_reward" in result.metrics
    assert result.metrics["mean_episode_length"] == 5


@pytest.mark.slow
def test_what_files_are_built_on_is_seen_in_them(files):
    from trainers.torchrl.configuration import trainer_parameters

    def critic(name):
        loaded = load_experiment(files / f"{name}.yaml", ASKED).hyper_params
        loss = trainer_parameters(loaded)["loss_module"]
        found = loss.get("critic_network") or loss.get("qvalue_network") or loss["value_network"]
        return found["network"]["centralized"]

    assert [critic(name) for name in FILES.NAMES[:6]] == [True, False] * 3
