"""Convolutions over image observations: layers, shapes and results."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.gymnasium.bodies import Body, ConvolutionalBody
from ratchet.scenarios.gymnasium.simulators import read_space
from trainers.registry import build_trainer

HERE = Path(__file__).parent


def parameters(agent=None, rl=None, **kwargs):
    return HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="pixels.py:Sides",
        gymnasium={"num_envs": 4, "num_test_episodes": 5, "environment_kwargs": kwargs},
        agents={"_default": {"hidden_sizes": [32], **(agent or {})}},
        rl={
            "frames_per_batch": 64,
            "minibatch_size": 32,
            "num_epochs": 2,
            "num_iterations": 4,
            "lr": 0.003,
            **(rl or {}),
        },
    )


def make(hyper_params):
    settings = ExperimentSettings()
    instance = build_scenario_instance(hyper_params, settings, base_dir=HERE)
    return build_trainer(hyper_params, instance, settings)


def body_of(hyper_params):
    settings = ExperimentSettings()
    return build_scenario_instance(hyper_params, settings, base_dir=HERE).agents["agent"].body


@pytest.mark.parametrize(
    ("shape", "dtype", "is_image"),
    [
        ((84, 84, 3), np.uint8, True),
        ((4, 84, 84), np.uint8, True),
        ((4, 10, 10, 3), np.uint8, True),
        ((12, 12), np.uint8, True),
        ((7, 7, 3), np.uint8, False),  # too small to be a picture
        ((128,), np.uint8, False),
        ((84, 84, 3), np.float32, False),  # could be anything
    ],
)
def test_bytes_in_two_dimensions_are_an_image(shape, dtype, is_image):
    box = gymnasium.spaces.Box(0, 255, shape, dtype)
    assert read_space(box, gymnasium.spaces.Discrete(2)).is_image is is_image


@pytest.mark.parametrize(
    ("kwargs", "channels"),
    [
        ({"layout": "last"}, 3),
        ({"layout": "first"}, 3),
        ({"layout": "grey"}, 1),
        ({"layout": "grey", "stack": 4}, 4),
        ({"layout": "last", "stack": 2}, 6),
    ],
)
def test_pixels_come_to_the_convolutions_as_channels_rows_and_columns(kwargs, channels):
    """With colours first or last and frames stacked: the same picture, from 0 to 1."""
    scene = build_scenario_instance(parameters(**kwargs), ExperimentSettings(), base_dir=HERE)
    game, body = scene.train_environment, scene.agents["agent"].body
    ids = torch.tensor([3, 5])
    observation = game.reset(ids, ids)["agents", "observation"]
    assert observation.dtype == torch.uint8
    images = body._images(observation[:, 0].float())
    assert images.shape == (2, channels, 12, 12)
    for place in range(2):
        expected = torch.from_numpy(game._simulators[place].env.image / 255).float()
        assert torch.equal(images[place], expected.expand(channels, -1, -1))
    game.close()


def test_what_convolutions_compute_is_what_torch_says():
    body = body_of(parameters({"convolutions": [[4, 3, 2], [6, 2, 1]]}, layout="grey"))
    x = torch.randint(256, (5, 144), generator=torch.Generator().manual_seed(0)).float()
    one, two = body.convolutions
    hidden = F.conv2d((x / 255).view(5, 1, 12, 12), one.weight, one.bias, stride=2).tanh()
    hidden = F.conv2d(hidden, two.weight, two.bias).tanh().flatten(1)
    layer = body.top.layers[0]
    torch.testing.assert_close(body(x), F.linear(hidden, layer.weight, layer.bias).tanh())


def test_an_agent_may_be_told_what_its_observations_are():
    assert isinstance(body_of(parameters()), ConvolutionalBody)
    assert isinstance(body_of(parameters({"body": "perceptron"})), Body)
    with pytest.raises(ParameterError, match=r"agents\.agent\.convolutions.*12 × 12"):
        body_of(parameters({"convolutions": [[8, 20, 1]]}))
    numbers = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="CartPole-v1",
        agents={"_default": {"body": "cnn"}},
    )
    with pytest.raises(ParameterError, match=r"agents\.agent\.body.*perceptron"):
        body_of(numbers)


def test_a_centralised_critic_sees_the_images_of_all_agents_as_channels():
    from ratchet.scenarios.gymnasium.networks import build_all_agents
    from ratchet.scenarios.gymnasium.spaces import AgentSpace, AgentSpaces, DiscreteActions

    section = parameters(
        {"centralised_critic": True, "observes_agent_id": True, "shared_model_group": "all"}
    )
    space = AgentSpace(300, DiscreteActions((2,)), (10, 10, 3), is_bytes=True)
    spaces = AgentSpaces({"a": space, "b": space})
    sections = {name: section.agents[name] for name in spaces.names}
    agent = build_all_agents(section, spaces, sections)["a"]
    assert agent.body.convolutions[0].in_channels == 3
    assert agent.value_body.convolutions[0].in_channels == 6
    assert agent.value_body(torch.zeros(4, 602)).shape == (4, 32)


def test_images_train_and_go_on_bit_for_bit(tmp_path):
    hyper_params = parameters()
    whole = make(hyper_params)
    whole.initial_state()
    expected = whole.run_iterations(0, 2)
    state, found = make(hyper_params).initial_state(), []
    for iteration in range(2):
        state.save(tmp_path / str(iteration))
        trainer = make(hyper_params)
        trainer.state = trainer.State.load(tmp_path / str(iteration))
        found += trainer.run_iterations(iteration, iteration + 1)
        state = trainer.state
    assert (found, state) == (expected, whole.state)
    mean = state.normalization["observations"]["observation_mean"]
    assert not mean.any()  # pixels are scaled, not normalised
    assert whole.run_test() == trainer.run_test()


@pytest.mark.parametrize("layout", ["last", "grey"])
def test_where_the_patch_lies_is_learned_from_pixels(layout):
    """By chance 4 of 8 are right."""
    hyper_params = parameters(
        {"activation_function": "relu", "convolutions": [[8, 3, 2]]},
        {"frames_per_batch": 256, "num_epochs": 4, "num_iterations": 12, "gamma": 0.5},
        layout=layout,
    )
    trainer = make(hyper_params)
    trainer.initial_state()
    trainer.run_iterations(0, 12)
    assert trainer.run_test().metrics["agent.mean_episode_reward"] >= 7


def test_frames_are_stacked_by_gymnasiums_wrapper():
    stacked = [{"name": "FrameStackObservation", "stack_size": 4}]
    body = body_of(parameters(layout="grey").replace({"gymnasium.wrappers": stacked}))
    assert body.convolutions[0].in_channels == 4
