"""Batched environments do what gymnasium's simulators do, step by step."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError, UnknownNameError
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.gymnasium.dynamics import uniform

NUM_ENVS = 16


def environment(dataset, implementation="batched", **section):
    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset=dataset,
        gymnasium={"implementation": implementation, "num_envs": NUM_ENVS, **section},
    )
    return build_scenario_instance(hyper_params, ExperimentSettings()).train_environment


def random_actions(dataset, generator):
    if dataset.startswith("CartPole"):
        return torch.randint(2, (NUM_ENVS, 1, 1), generator=generator)
    return 5 * torch.rand(NUM_ENVS, 1, 1, generator=generator) - 2.5  # beyond the bounds too


@pytest.mark.parametrize(
    ("dataset", "section", "num_steps"),
    [
        ("CartPole-v1", {}, 300),
        ("CartPole-v1", {"max_episode_steps": 15}, 60),
        ("CartPole-v1", {"environment_kwargs": {"sutton_barto_reward": True}}, 60),
        ("Pendulum-v1", {}, 230),
        ("Pendulum-v1", {"environment_kwargs": {"g": 3.7}}, 60),
    ],
)
def test_every_step_is_that_of_the_simulator(dataset, section, num_steps):
    """4,800 steps of CartPole over some 200 episodes, and 3,680 of Pendulum past its time limit."""
    games = [environment(dataset, kind, **section) for kind in ("batched", "simulated")]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(len(games[0].dataset), (NUM_ENVS,), generator=generator)
    states = [game.reset(ids, ids) for game in games]
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(num_steps):
        actions = random_actions(dataset, generator)
        found = []
        for game, state in zip(games, states, strict=True):
            state["agents", "action"] = actions
            found.append(game.step(state))
        batched, simulated = found
        for key in ("round", "done", "terminated", ("agents", "truncated")):
            assert torch.equal(batched[key], simulated[key]), key
        for name in ("observation", "reward", "episode_reward"):
            torch.testing.assert_close(
                batched["agents", name], simulated["agents", name], rtol=1e-5, atol=1e-5
            )
        over = batched["done"]
        ends["terminated"] += int(batched["terminated"].sum())
        ends["truncated"] += int(batched["agents", "truncated"].sum())
        fresh = torch.randint(len(games[0].dataset), (int(over.sum()),), generator=generator)
        states = [
            game.reset_where(state, over, fresh, fresh)
            for game, state in zip(games, found, strict=True)
        ]
    limited = dataset == "Pendulum-v1" or "max_episode_steps" in section
    assert ends["truncated"] > 0 or not limited or num_steps < 200
    assert ends["terminated"] > 0 or dataset == "Pendulum-v1"


def test_initial_states_are_gymnasiums_bit_for_bit():
    low, high = np.array([-np.pi, -1.0]), np.array([np.pi, 1.0])
    drawn = uniform(torch.tensor([3, 2**31 - 1]), torch.from_numpy(low), torch.from_numpy(high))
    for row, seed in zip(drawn, (3, 2**31 - 1), strict=True):
        generator, _ = gymnasium.utils.seeding.np_random(seed)
        assert np.array_equal(row.numpy(), generator.uniform(low=low, high=high))


def test_a_step_leaves_the_states_it_begins_from_as_they_are():
    game = environment("CartPole-v1")
    state = game.reset(torch.arange(NUM_ENVS), torch.arange(NUM_ENVS))
    state["agents", "action"] = torch.ones(NUM_ENVS, 1, 1, dtype=torch.int64)
    before = state.clone()
    game.step(state)
    assert (state == before).all()


def test_only_ended_episodes_begin_anew():
    game = environment("Pendulum-v1")
    state = game.reset(torch.arange(NUM_ENVS), torch.arange(NUM_ENVS))
    state["agents", "action"] = torch.zeros(NUM_ENVS, 1, 1)
    following = game.step(state)
    mask = torch.zeros(NUM_ENVS, dtype=torch.bool)
    mask[[2, 5]] = True
    again = game.reset_where(following, mask, torch.tensor([7, 7]), torch.tensor([1, 2]))
    assert again["round"].tolist() == [0 if i in (2, 5) else 1 for i in range(NUM_ENVS)]
    assert again["datapoint_id"][[2, 5]].tolist() == [7, 7]
    kept = ~mask
    assert torch.equal(again["dynamics", "physics"][kept], following["dynamics", "physics"][kept])
    assert torch.equal(again["dynamics", "physics"][2], again["dynamics", "physics"][5])


def test_training_and_test_share_no_initial_state():
    hyper_params = HyperParameters(
        scenario="gymnasium", trainer="vanilla_ppo", dataset="CartPole-v1"
    )
    instance = build_scenario_instance(hyper_params, ExperimentSettings())
    train, test = (instance.datasets[name]["seed"].tolist() for name in ("train", "test"))
    assert (len(set(train)), len(set(test))) == (10_000, 100)
    assert not set(train) & set(test)
    more = build_scenario_instance(
        hyper_params.replace({"gymnasium.num_train_seeds": 20_000}), ExperimentSettings()
    )
    assert more.test_dataset["seed"].tolist() == test


@pytest.mark.parametrize(
    ("section", "rl", "expected"),
    [
        ({}, {}, (8, 125)),
        ({"num_envs": 16}, {"frames_per_batch": 1000}, (16, 63)),
        ({}, {"frames_per_batch": 640, "steps_per_env_per_iteration": 32}, (20, 32)),
        ({"num_envs": 4}, {"frames_per_batch": None, "steps_per_env_per_iteration": 32}, (4, 32)),
    ],
)
def test_frames_are_environments_times_steps(section, rl, expected):
    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="CartPole-v1",
        gymnasium=section,
        rl=rl,
    )
    game = build_scenario_instance(hyper_params, ExperimentSettings()).train_environment
    assert (game.num_envs, game.steps_per_env_per_iteration) == expected


def test_frames_that_are_not_environments_times_steps_are_refused():
    with pytest.raises(ParameterError, match="environments times steps"):
        environment_with(rl={"frames_per_batch": 100, "steps_per_env_per_iteration": 32})
    with pytest.raises(ParameterError, match="rollouts_per_iteration"):
        environment_with(rl={"rollouts_per_iteration": 3})


def environment_with(**changes):
    hyper_params = HyperParameters(
        **{
            "scenario": "gymnasium",
            "trainer": "vanilla_ppo",
            "dataset": "CartPole-v1",
            **changes,
        }
    )
    return build_scenario_instance(hyper_params, ExperimentSettings())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dataset": "CartPol-v1"}, UnknownNameError, "CartPole-v1"),
        (
            {"dataset": "Acrobot-v1", "gymnasium": {"implementation": "batched"}},
            ParameterError,
            "no dynamics on tensors",
        ),
        (
            {"gymnasium": {"environment_kwargs": {"gravity": 1.0}}},
            ParameterError,
            "environment_kwargs",
        ),
        ({"interaction_protocol": "nip"}, ParameterError, "expected 'environment'"),
        ({"pretrain_agents": True}, ParameterError, "no labels"),
        (
            {"agents": {"_default": {"use_manual_architecture": True}}},
            ParameterError,
            "no scripted agent",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_reason(changes, error, message):
    with pytest.raises(error, match=message):
        environment_with(**changes)


def test_a_game_of_messages_has_no_protocol_of_environments():
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="er100",
        interaction_protocol="environment",
    )
    with pytest.raises(ParameterError, match="expected scenario 'gymnasium'"):
        build_scenario_instance(hyper_params, ExperimentSettings())


def test_the_protocol_of_an_environment_is_not_nip():
    hyper_params = HyperParameters(
        scenario="gymnasium", trainer="vanilla_ppo", dataset="CartPole-v1"
    )
    assert hyper_params.interaction_protocol == "environment"
    assert HyperParameters.from_dict(hyper_params.to_dict()) == hyper_params
