"""Simulators of gymnasium and PettingZoo, one per episode, that can be resumed."""

from __future__ import annotations

import textwrap

import gymnasium
import mpe2.simple_spread_v3
import numpy as np
import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError, StateError
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.gymnasium.catalogue import find_game
from ratchet.scenarios.gymnasium.simulators import (
    GymnasiumSimulator,
    PettingZooSimulator,
    read_space,
    write_action,
)
from ratchet.scenarios.gymnasium.spaces import ContinuousActions, DiscreteActions


def instance(dataset, base_dir=None, **section):
    hyper_params = HyperParameters(
        scenario="gymnasium", trainer="vanilla_ppo", dataset=dataset, gymnasium=section
    )
    return build_scenario_instance(hyper_params, ExperimentSettings(), base_dir=base_dir)


def test_several_agents_see_and_are_paid_what_pettingzoo_says():
    scene = instance("mpe2.simple_spread_v3", num_envs=2)
    game = scene.train_environment
    assert scene.agent_names == ("agent_0", "agent_1", "agent_2")
    peer = mpe2.simple_spread_v3.parallel_env()
    ids = torch.tensor([4, 9])
    state = game.reset(ids, ids)
    observations, _ = peer.reset(seed=int(game.dataset["seed"][9]))
    generator = torch.Generator().manual_seed(1)
    total = 0.0
    for step in range(25):
        seen = np.stack([observations[name] for name in scene.agent_names])
        assert np.array_equal(state["agents", "observation"][1].numpy(), seen)
        actions = torch.randint(5, (2, 3, 1), generator=generator)
        state["agents", "action"] = actions
        state = game.step(state)
        chosen = zip(scene.agent_names, actions[1, :, 0].tolist(), strict=True)
        observations, rewards, _, truncations, _ = peer.step(dict(chosen))
        paid = np.array([rewards[name] for name in scene.agent_names], np.float32)
        assert np.array_equal(state["agents", "reward"][1].numpy(), paid)
        total = total + paid
        assert bool(state["done"][1]) == (step == 24) == truncations["agent_0"]
    np.testing.assert_allclose(state["agents", "episode_reward"][1].numpy(), total, rtol=1e-5)
    assert state["agents", "truncated"][1].all()
    assert not state["terminated"].any()


class Leaving:
    """A parallel environment in which the first agent leaves before the second."""

    possible_agents = ["early", "late"]  # noqa: RUF012 -- PettingZoo's way

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-1, 1, (2 if agent == "early" else 3,))

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.steps, self.asked = list(self.possible_agents), 0, []
        return {name: np.ones(self.observation_space(name).shape) for name in self.agents}, {}

    def step(self, actions):
        self.asked.append(sorted(actions))
        self.steps += 1
        ends = {name: self.steps == (1 if name == "early" else 3) for name in self.agents}
        seen = {name: np.ones(self.observation_space(name).shape) for name in self.agents}
        rewards = dict.fromkeys(self.agents, 1.0)
        never = dict.fromkeys(self.agents, False)
        self.agents = [name for name in self.agents if not ends[name]]
        return seen, rewards, ends, never, {}

    def close(self):
        pass


def test_an_agent_that_has_left_is_asked_and_paid_no_more():
    simulator = PettingZooSimulator(Leaving())
    first = simulator.reset(0)
    assert first.tolist() == [[1, 1, 0], [1, 1, 1]]
    steps = [simulator.step(np.zeros((2, 1), np.int64)) for _ in range(3)]
    assert simulator.env.asked == [["early", "late"], ["late"], ["late"]]
    assert [step.reward.tolist() for step in steps] == [[1, 1], [0, 1], [0, 1]]
    assert [step.terminated.tolist() for step in steps] == [
        [True, False],
        [False, False],
        [False, True],
    ]


def test_a_custom_time_limit_cuts_off_whoever_is_left():
    simulator = PettingZooSimulator(Leaving(), max_episode_steps=2)
    simulator.reset(0)
    steps = [simulator.step(np.zeros((2, 1), np.int64)) for _ in range(2)]
    assert [step.truncated.tolist() for step in steps] == [[False, False], [False, True]]


@pytest.mark.parametrize(
    ("space", "expected", "chosen"),
    [
        (gymnasium.spaces.Discrete(3, start=5), DiscreteActions((3,)), [1]),
        (gymnasium.spaces.MultiDiscrete([2, 4]), DiscreteActions((2, 4)), [1, 3]),
        (gymnasium.spaces.MultiBinary(3), DiscreteActions((2, 2, 2)), [0, 1, 1]),
    ],
)
def test_choices_become_numbers_and_back(space, expected, chosen):
    seen = gymnasium.spaces.Dict(
        {"a": gymnasium.spaces.Discrete(4), "b": gymnasium.spaces.Box(0, 1, (2, 3))}
    )
    found = read_space(seen, space)
    assert (found.observation_size, found.actions) == (10, expected)
    assert space.contains(write_action(space, np.array(chosen)))


def test_continuous_actions_are_kept_within_their_bounds():
    space = gymnasium.spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 2.0]), dtype=np.float64)
    assert read_space(space, space).actions == ContinuousActions((-1.0, 0.0), (1.0, 2.0))
    assert write_action(space, np.array([-3.0, 1.5], np.float32)).tolist() == [-1.0, 1.5]


def test_spaces_without_a_size_are_refused():
    box = gymnasium.spaces.Box(0, 1, (2,))
    with pytest.raises(ParameterError, match="expected Discrete"):
        read_space(box, gymnasium.spaces.Text(4))
    with pytest.raises(ParameterError, match="fixed size"):
        read_space(gymnasium.spaces.Sequence(box), gymnasium.spaces.Discrete(2))


def play(game, state, generator, num_steps):
    for _ in range(num_steps):
        state["agents", "action"] = torch.randint(2, (len(state), 1, 1), generator=generator)
        state = game.step(state)
    return state


def test_saved_episodes_go_on_as_if_nothing_had_happened():
    game = instance("CartPole-v1", implementation="simulated", num_envs=3).train_environment
    generator = torch.Generator().manual_seed(2)
    ids = torch.tensor([1, 2, 3])
    state = play(game, game.reset(ids, ids), generator, 4)
    mask = torch.tensor([False, True, False])
    state = game.reset_where(state, mask, torch.tensor([8]), torch.tensor([8]))
    state = play(game, state, generator, 3)
    saved = game.save_episodes(state)
    assert all(tensor.device.type == "cpu" for tensor in saved.values())
    other = game.own()
    restored = other.restore_episodes(saved)
    one, two = generator.clone_state(), generator.clone_state()
    expected, found = play(game, state, one, 3), play(other, restored, two, 3)
    assert expected["round"].tolist() == [10, 6, 10]
    for key in (("agents", "observation"), ("agents", "episode_reward"), "round", "done"):
        assert torch.equal(expected[key], found[key]), key
    game.close()
    other.close()


def test_a_simulator_that_draws_on_more_than_its_seed_is_found_out(tmp_path):
    (tmp_path / "noisy.py").write_text(
        textwrap.dedent(
            """
            import gymnasium, numpy

            class Noisy(gymnasium.Env):
                observation_space = gymnasium.spaces.Box(-1, 1, (1,))
                action_space = gymnasium.spaces.Discrete(2)
                def reset(self, *, seed=None, options=None):
                    return self.look(), {}
                def step(self, action):
                    return self.look(), 0.0, False, False, {}
                def look(self):
                    return numpy.random.rand(1).astype("float32")
            """
        )
    )
    game = instance("noisy.py:Noisy", base_dir=tmp_path, num_envs=2).train_environment
    ids = torch.tensor([0, 1])
    state = play(game, game.reset(ids, ids), torch.Generator(), 3)
    with pytest.raises(StateError, match="carry_episodes: false"):
        game.own().restore_episodes(game.save_episodes(state))


def test_an_environment_of_its_own_does_not_disturb_the_other():
    game = instance("CartPole-v1", implementation="simulated", num_envs=1).train_environment
    ids = torch.tensor([0])
    first = play(game, game.reset(ids, ids), torch.Generator().manual_seed(0), 2)
    other = game.own()
    play(other, other.reset(ids + 1, ids), torch.Generator().manual_seed(1), 5)
    expected = game.own()
    again = play(expected, expected.reset(ids, ids), torch.Generator().manual_seed(0), 3)
    last = play(game, first, torch.Generator().manual_seed(0), 0)
    assert torch.equal(
        play(game, last, generator_at(2), 1)["agents", "observation"],
        again["agents", "observation"],
    )


def generator_at(num_drawn):
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_drawn):
        torch.randint(2, (1, 1, 1), generator=generator)
    return generator


def test_time_limits_of_gymnasium_and_of_the_experiment_cut_episodes_off():
    simulator = GymnasiumSimulator(gymnasium.make("Pendulum-v1", max_episode_steps=3))
    simulator.reset(0)
    steps = [simulator.step(np.zeros((1, 1), np.float32)) for _ in range(3)]
    assert [bool(step.truncated[0]) for step in steps] == [False, False, True]
    assert not any(step.terminated[0] for step in steps)


ENVIRONMENT = """
import gymnasium
from gymnasium.spaces import Box, Discrete


class Sized(gymnasium.Env):
    def __init__(self, sizes):
        self.observation_space = Box(-1, 1, (sum(sizes["seen"]),))
        self.action_space = Discrete(sizes["choices"])
"""


def test_nested_arguments_reach_the_constructor(tmp_path):
    (tmp_path / "sized.py").write_text(ENVIRONMENT)
    params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="sized.py:Sized",
        gymnasium={"environment_kwargs": {"sizes": {"seen": [2, 3], "choices": 4}}},
    )
    spaces = find_game(params, tmp_path).spaces().by_name["agent"]
    assert (spaces.observation_size, spaces.actions.sizes) == (5, (4,))
    assert HyperParameters.from_dict(params.to_dict(), tmp_path) == params
