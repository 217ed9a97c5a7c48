"""Environments of PettingZoo, dm_control and VMAS by name, for the library's trainers."""

from __future__ import annotations

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import MissingPackageError, ParameterError, UnknownNameError
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.gymnasium.catalogue import needed_packages
from trainers.registry import build_trainer

SMALL = {
    "torchrl.batches_per_iteration": 1,
    "torchrl.evaluation_period": 1,
    "torchrl.evaluation_episodes": 1,
    "collector.frames_per_batch": 24,
    "trainer.total_frames": 72,
    "replay_buffer.batch_size": 8,
}
ON_POLICY = {"trainer.num_epochs": 2}
OFF_POLICY = {
    "replay_buffer.storage.max_size": 40,
    "collector.init_random_frames": 24,
    "trainer.optim_steps_per_batch": 3,
}
PETTINGZOO = "mpe2.simple_spread_v3"
DISCRETE = {"environment_kwargs": {"continuous_actions": False, "n_agents": 2}}
SUITES = [
    ("sac", "dm_control/cartpole-swingup", {}, {}),
    ("ppo", "dm_control/walker-walk", {"environment_kwargs": {"frame_skip": 2}}, {}),
    ("ppo", "vmas/navigation", {}, {"training_env.base_env.num_envs": 2}),
    ("ppo", "vmas/balance", DISCRETE, {"model.centralized_critic": False}),
    ("sac", "vmas/balance", {}, {}),
    ("ddpg", "vmas/balance", {}, {"model.shared_parameters": False}),
    ("dqn", "vmas/balance", DISCRETE, {}),
]


def parameters(algorithm, dataset, section=None, changes=None):
    section = {"num_test_episodes": 2, "num_train_seeds": 4, "max_episode_steps": 6} | (
        section or {}
    )
    base = HyperParameters(
        scenario="gymnasium", trainer=f"torchrl_{algorithm}", dataset=dataset, gymnasium=section
    )
    part = ON_POLICY if algorithm == "ppo" else OFF_POLICY
    return base.replace({**SMALL, **part, **(changes or {})})


def made(params):
    settings = ExperimentSettings()
    return build_trainer(params, build_scenario_instance(params, settings), settings)


def check(params, reward):
    """Train in one go and cut, compare, and test."""
    whole, cut, resumed = (made(params) for _ in range(3))
    assert whole.initial_state() == cut.initial_state()
    metrics = whole.run_iterations(0, 3)
    cut.run_iterations(0, 1)
    resumed.state = cut.state
    assert resumed.run_iterations(1, 3) == metrics[1:]
    assert resumed.state == whole.state != cut.state
    assert metrics[0]["evaluation_length"] == 6
    result = whole.run_test()
    assert result.metrics["mean_episode_length"] == 6
    assert reward in result.metrics
    return whole


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_a_group_of_pettingzoos_learns_resumes_and_is_tested(algorithm):
    trainer = check(parameters(algorithm, PETTINGZOO), "agent.mean_episode_reward")
    network = trainer.policy[0].module
    assert (network.n_agents, network.share_params, network.centralized) == (3, True, False)


@pytest.mark.in_turn(2)
@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "dataset", "section", "changes"), SUITES)
def test_environments_of_suites_are_learned_in(algorithm, dataset, section, changes):
    suite = dataset.partition("/")[0]
    pytest.importorskip(suite, reason=f"{suite} is not installed")
    group = "agents" if suite == "vmas" else "agent"
    check(parameters(algorithm, dataset, section, changes), f"{group}.mean_episode_reward")


@pytest.mark.parametrize(
    ("dataset", "nearest"),
    [
        ("vmas/navigatoin", "vmas/navigation"),
        ("dm_control/cartpole-swing", "dm_control/cartpole-swingup"),
    ],
)
def test_names_of_suites_have_their_nearest(dataset, nearest):
    suite = dataset.partition("/")[0]
    pytest.importorskip(suite, reason=f"{suite} is not installed")
    with pytest.raises(UnknownNameError, match=f"Did you mean '{nearest}'"):
        made(parameters("ppo", dataset)).initial_state()


def test_what_vmas_cannot_is_said():
    pytest.importorskip("vmas", reason="VMAS is not installed")
    with pytest.raises(ParameterError, match=r"max_episode_steps: got None for 'vmas/balance'"):
        made(parameters("ppo", "vmas/balance", {"max_episode_steps": None})).initial_state()
    with pytest.raises(ParameterError, match=r"form the groups \['adversary', 'agent'\]"):
        made(parameters("ppo", "vmas/simple_tag")).initial_state()


@pytest.mark.parametrize("suite", ["vmas", "dm_control"])
def test_a_suite_that_is_not_installed_is_named(monkeypatch, suite):
    monkeypatch.setattr("ratchet.lazy.is_installed", lambda package: package != suite)
    params = parameters("ppo", f"{suite}/balance")
    assert needed_packages(params) == ["gymnasium", suite]
    with pytest.raises(MissingPackageError, match=f"needs {suite}, not installed here. Install it"):
        build_scenario_instance(params, ExperimentSettings())


def test_algorithms_without_defaults_for_groups_say_which_have_them():
    with pytest.raises(ParameterError, match=r"torchrl_a2c .* form the group 'agent'; expected"):
        made(parameters("a2c", PETTINGZOO)).initial_state()
    with pytest.raises(ParameterError, match=r"torchrl_sac .* actions are discrete"):
        made(parameters("sac", PETTINGZOO)).initial_state()


def test_our_own_trainers_say_who_plays_a_suite(monkeypatch):
    monkeypatch.setattr("ratchet.lazy.is_installed", lambda _: True)
    params = HyperParameters(scenario="gymnasium", trainer="vanilla_ppo", dataset="vmas/balance")
    instance = build_scenario_instance(params, ExperimentSettings())
    with pytest.raises(ParameterError, match="only its trainers support; expected one of them"):
        build_trainer(params, instance, ExperimentSettings()).initial_state()


def test_simulators_stand_side_by_side_where_they_are_made_here():
    changes = {"training_env.base_env.num_envs": 2}
    trainer = made(parameters("ppo", "CartPole-v1", changes=changes))
    trainer.initial_state()
    assert trainer.torchrl_trainer.collector.env.batch_size == (2,)
    trainer.run_iterations(0, 1)
    assert trainer.run_test().metrics["mean_episode_length"] == 6


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("HalfCheetah-v5", ["mujoco", "imageio"]),
        ("LunarLander-v3", ["Box2D"]),
        ("CartPole-v1", []),
        ("NoSuchThing-v0", []),
    ],
)
@pytest.mark.parametrize("trainer", ["vanilla_ppo", "torchrl_sac"])
def test_packages_of_gymnasiums_simulators_are_named_before_a_run(name, packages, trainer):
    params = HyperParameters(scenario="gymnasium", trainer=trainer, dataset=name)
    gymnasium = {"implementation": "simulated"} if trainer == "vanilla_ppo" else {}
    assert needed_packages(params.replace({"gymnasium": gymnasium})) == ["gymnasium", *packages]
