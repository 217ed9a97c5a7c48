"""Films of test episodes: the episodes that were played, small enough, the same each time."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.gymnasium import gif_recorder
from ratchet.scenarios.gymnasium.gif_recorder import animated
from trainers.compatibility import check_combination
from trainers.registry import build_trainer

HERE = Path(__file__).parent


def parameters(dataset="CartPole-v1", trainer="vanilla_ppo", **section):
    return HyperParameters(
        scenario="gymnasium",
        trainer=trainer,
        dataset=dataset,
        gymnasium={"num_envs": 2, "num_test_episodes": 5, "num_test_videos": 2, **section},
        agents={"_default": {"hidden_sizes": [8]}},
        rl={"frames_per_batch": 16, "num_iterations": 1, "normalize_observations": False},
    )


def outcome_of(hyper_params):
    settings = ExperimentSettings()
    instance = build_scenario_instance(hyper_params, settings, base_dir=HERE)
    trainer = build_trainer(hyper_params, instance, settings)
    trainer.initial_state()
    return trainer.run_test()


def frames(film):
    return [frame.convert("RGB") for frame in ImageSequence.Iterator(Image.open(BytesIO(film)))]


def seconds(film):
    """Consecutive equal pictures are merged into one with their total duration."""
    each = ImageSequence.Iterator(Image.open(BytesIO(film)))
    return sum(frame.info["duration"] for frame in each) / 1000


@pytest.mark.parametrize(
    ("hyper_params", "fps"),
    [
        (parameters(max_episode_steps=9), 50),  # on tensors: drawn by gymnasium's simulator
        (parameters(max_episode_steps=9, implementation="simulated"), 50),
        (parameters("mpe2.simple_spread_v3", environment_kwargs={"N": 2, "max_cycles": 6}), 10),
        (parameters("pixels.py:Sides", environment_kwargs={"steps": 5}), 10),
    ],
    ids=["batched", "simulated", "several agents", "custom class"],
)
def test_a_film_shows_every_step_and_is_the_same_each_time(hyper_params, fps):
    check_combination(hyper_params, HERE)
    result = outcome_of(hyper_params)
    for film, steps in zip(result.films, result.table["rounds"], strict=False):
        assert seconds(film) == pytest.approx((steps + 1) / fps, abs=0.03)
    assert outcome_of(hyper_params) == result
    assert result.films[0] != result.films[1]


def test_what_is_shown_is_what_was_played():
    """The patch of each picture is at the position that the table's rewards imply."""
    result = outcome_of(parameters("pixels.py:Sides", num_test_videos=1))
    instance = build_scenario_instance(
        parameters("pixels.py:Sides"), ExperimentSettings(), base_dir=HERE
    )
    game = instance.test_environment
    simulator = game.game.make()
    simulator.reset(int(game.dataset["seed"][0]))
    picture = np.asarray(frames(result.films[0])[0])
    assert np.array_equal(picture[5::11, 5::11] > 127, simulator.render() > 127)
    game.close()


def test_films_change_nothing_else_and_are_not_made_unless_asked_for():
    asked = parameters(max_episode_steps=9)
    plain = asked.replace({"gymnasium.num_test_videos": 0})
    with_films, without = outcome_of(asked), outcome_of(plain)
    assert (with_films.table, with_films.metrics) == (without.table, without.metrics)
    assert without.films == ()
    from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer

    keys = VanillaPpoTrainer.stage_key_parameters
    assert keys(asked, "train") == keys(plain, "train")
    assert keys(asked, "test") != keys(plain, "test")


def test_long_and_large_films_are_cut_down(monkeypatch):
    noise = np.random.default_rng(0).integers(0, 255, (24, 400, 300, 3), np.uint8)
    film = animated(list(noise), 50)
    assert Image.open(BytesIO(film)).size == (192, 256)
    monkeypatch.setattr(gif_recorder, "MAX_FRAMES", 10)
    shorter = animated(list(noise), 50)
    assert Image.open(BytesIO(shorter)).n_frames == 8
    assert Image.open(BytesIO(shorter)).info["duration"] == 60  # the same duration
    monkeypatch.setattr(gif_recorder, "MAX_BYTES", len(shorter) // 2)
    smallest = animated(list(noise), 50)
    assert len(smallest) <= len(shorter) // 2
    assert Image.open(BytesIO(smallest)).n_frames < 8


DARK = """
import torch
from ratchet.scenarios.gymnasium.dynamics import Dynamics, Transition
from ratchet.scenarios.gymnasium.spaces import AgentSpace, DiscreteActions


class Dark(Dynamics):
    agents = {"agent": AgentSpace(1, DiscreteActions((2,)))}
    def first_state(self, seeds):
        return {"x": seeds.float()}
    def observe(self, state):
        return state["x"][:, None, None]
    def step(self, state, actions):
        over = torch.ones_like(state["x"], dtype=torch.bool)
        return Transition(state, torch.zeros(len(over), 1), over)
"""


UNDRAWN = """
import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled

class Undrawn(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}
    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}
    def render(self):
        raise DependencyNotInstalled("pens are not installed, run `pip install pens`")
"""


def test_what_a_picture_needs_and_is_not_there_is_told_before_the_run(tmp_path):
    (tmp_path / "undrawn.py").write_text(UNDRAWN)
    with pytest.raises(ParameterError, match=r"got 2.*run `pip install pens`\. Set it to 0\."):
        check_combination(parameters("undrawn.py:Undrawn"), tmp_path)


def test_what_cannot_be_filmed_is_refused_before_the_run(tmp_path):
    (tmp_path / "dark.py").write_text(DARK)
    with pytest.raises(
        ParameterError, match=r"num_test_videos: got 2.*recall\.py:Recall.*cannot be rendered"
    ):
        check_combination(parameters("recall.py:Recall"), HERE)
    with pytest.raises(ParameterError, match=r"num_test_videos.*not a gymnasium"):
        check_combination(parameters("dark.py:Dark"), tmp_path)
    with pytest.raises(ParameterError, match=r"num_test_videos: got 2.*'torchrl_ppo'"):
        check_combination(parameters(trainer="torchrl_ppo"), HERE)
