"""A subclass of TorchRL's ``EnvBase``, by its path, with Ratchet's trainers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.gymnasium.spaces import ContinuousActions, DiscreteActions
from trainers.compatibility import check_combination
from trainers.registry import build_trainer

HERE = Path(__file__).parent
INFINITE = (float("inf"),)
ACTIONS = {
    "choice": DiscreteActions((3,)),
    "one hot": DiscreteActions((3,)),
    "several": DiscreteActions((2, 3)),
    "bits": DiscreteActions((2, 2)),
    "reals": ContinuousActions((-1.0, -1.0), (1.0, 1.0)),
    "unbounded": ContinuousActions((-float("inf"),), INFINITE),
}


def parameters(dataset="torchrl_environments.py:Noisy", **section):
    return HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset=dataset,
        gymnasium={"num_envs": 3, "num_test_episodes": 4, **section},
        agents={"_default": {"hidden_sizes": [16]}},
        rl={
            "frames_per_batch": 24,
            "minibatch_size": 12,
            "num_epochs": 2,
            "num_iterations": 4,
            "num_normalization_steps": 24,
        },
    )


def build(hyper_params):
    return build_scenario_instance(hyper_params, ExperimentSettings(), base_dir=HERE)


def make(hyper_params):
    return build_trainer(hyper_params, build(hyper_params), ExperimentSettings())


@pytest.mark.parametrize("kind", ACTIONS)
def test_actions_of_every_kind_are_chosen_and_done(kind):
    """The environment asserts that its inputs match its specification."""
    scene = build(parameters(environment_kwargs={"actions": kind, "sizes": {"length": 3}}))
    game, agents = scene.train_environment, scene.combined_agents
    space = agents.spaces.by_name["agent"]
    assert (space.observation_size, space.actions) == (3, ACTIONS[kind])
    ids = torch.tensor([0, 1])
    td = game.reset(ids, ids)
    for step in range(3):
        assert td["agents", "observation"][:, 0, -1].tolist() == [step] * 2 or (
            td["agents", "observation"][:, 0, 0].tolist() == [step] * 2
        )
        td = game.step(agents.act(td))
    assert td["terminated"].all()
    game.close()


def test_episodes_are_a_function_of_seed_and_actions_whatever_else_is_drawn():
    game = build(parameters()).train_environment
    ids = torch.tensor([4, 7])

    def play(disturbance):
        td, seen = game.reset(ids, ids), []
        for _ in range(3):
            torch.rand(disturbance)
            td["agents", "action"] = torch.ones(2, 1, 1, dtype=torch.int64)
            td = game.step(td)
            seen.append(td["agents", "observation"])
        return torch.stack(seen)

    before = torch.get_rng_state()
    first = play(0)
    assert torch.equal(torch.get_rng_state(), before)  # no other generator is used
    assert torch.equal(first, play(5))
    assert not torch.equal(first[:, 0], first[:, 1])
    game.close()


def test_training_goes_on_bit_for_bit_and_time_limits_hold(tmp_path):
    hyper_params = parameters(max_episode_steps=4)
    check_combination(hyper_params, HERE)
    whole = make(hyper_params)
    whole.initial_state()
    expected = whole.run_iterations(0, 3)
    state, found = make(hyper_params).initial_state(), []
    for iteration in range(3):
        state.save(tmp_path / str(iteration))
        trainer = make(hyper_params)
        trainer.state = trainer.State.load(tmp_path / str(iteration))
        found += trainer.run_iterations(iteration, iteration + 1)
        state = trainer.state
    assert (found, state) == (expected, whole.state)
    result = whole.run_test()
    assert result == trainer.run_test()
    assert result.table["rounds"] == [4] * 4
    assert result.table["terminated"] == [False] * 4


def test_what_cannot_be_simulated_is_refused_before_the_run_with_the_reason():
    with pytest.raises(
        ParameterError, match=r"'Pair' has .*rewards of shape \(2, 1\).*torchrl_ppo"
    ):
        check_combination(parameters("torchrl_environments.py:Pair"), HERE)
    wrong = parameters(environment_kwargs={"size": 3})
    with pytest.raises(ParameterError, match=r"environment_kwargs: Noisy got \['size'\]"):
        check_combination(wrong, HERE)
