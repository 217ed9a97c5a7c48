"""Environments from a user's file, and arguments of environments, for the library's trainers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment
from ratchet.scenarios import build_scenario_instance
from tasks.tensordict.keys import ArmKeys
from trainers.registry import build_trainer
from trainers.torchrl import environment_facts

FILE = '''
import gymnasium
import numpy as np
import torch
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase
from tensordict import TensorDict


class Guess(gymnasium.Env):
    """Pays for action 1, for ``length`` steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=4, sizes=None):
        self.length = length + sum((sizes or {}).values())

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        seen = self.np_random.random(3, np.float32)
        return seen, float(action), self.steps >= self.length, False, {}


class Count(EnvBase):
    """Shows how many steps there were, and pays for action 2 of three, for five steps."""

    def __init__(self, length=5):
        super().__init__()
        self.length = length
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Categorical(3)
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict):
        self.steps = 0
        return TensorDict({"observation": torch.zeros(1)}, [])

    def _step(self, tensordict):
        self.steps += 1
        return TensorDict(
            {
                "observation": torch.full((1,), float(self.steps)),
                "reward": (tensordict["action"] == 2).float().reshape(1),
                "done": torch.tensor([self.steps >= self.length]),
                "terminated": torch.tensor([self.steps >= self.length]),
            },
            [],
        )

    def _set_seed(self, seed):
        pass
'''
SMALL = {
    "scenario": "gymnasium",
    "torchrl": {
        "batches_per_iteration": 1,
        "config": {"trainer": {"total_frames": 72, "num_epochs": 1}},
    },
    "collector": {"frames_per_batch": 24},
    "replay_buffer": {"batch_size": 8},
}


@pytest.fixture
def load(tmp_path):
    """Load an experiment from a folder that is not the working folder."""

    def make(dataset, trainer="torchrl_ppo", folder=tmp_path / "here", **section):
        folder.mkdir(exist_ok=True)
        if not (folder / "my_env.py").exists():
            (folder / "my_env.py").write_text(FILE)
        gymnasium = {"num_test_episodes": 2, "num_train_seeds": 4, **section}
        small = SMALL if trainer.startswith("torchrl_") else {"scenario": "gymnasium"}
        content = {**small, "trainer": trainer, "dataset": dataset, "gymnasium": gymnasium}
        (folder / "experiment.yaml").write_text(yaml.safe_dump(content))
        return load_experiment(folder / "experiment.yaml")

    return make


def build(experiment):
    params, settings = experiment.hyper_params, experiment.settings
    instance = build_scenario_instance(params, settings, base_dir=Path(settings.base_dir))
    return build_trainer(params, instance, settings)


def learned(experiment, cut=False):
    trainer = build(experiment)
    trainer.initial_state()
    if cut:
        trainer.run_iterations(0, 1)
        state, trainer = trainer.state, build(experiment)
        trainer.state = state
        trainer.run_iterations(1, 2)
    else:
        trainer.run_iterations(0, 2)
    return trainer


def keys_of(experiment):
    """Return the keys of training and tests; nothing says here where the process runs."""
    keys = ArmKeys("", experiment.hyper_params, base_dir=experiment.settings.base_dir)
    assert keys.num_iterations == 3
    return keys.train(0, 1).key, keys.test("test").key


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "length"), [("my_env.py:Guess", 4), ("my_env.py:Count", 5)])
def test_classes_of_a_file_are_learned_in_resumed_and_tested(load, dataset, length):
    trainer = learned(load(dataset))
    resumed = learned(load(dataset), cut=True)
    for one, other in zip(
        trainer.state.tensors.values(), resumed.state.tensors.values(), strict=True
    ):
        assert one.equal(other)
    metrics = trainer.run_test("test").metrics
    assert metrics["mean_episode_length"] == length
    assert 0 <= metrics["agent.mean_episode_reward"] <= length


def test_a_files_environment_is_looked_at_once_until_the_file_changes(load, tmp_path, monkeypatch):
    looked, look = [], environment_facts._inspect
    monkeypatch.setattr(environment_facts, "_inspect", lambda *a: looked.append(a) or look(*a))
    for content in (FILE, FILE + "# changed"):
        experiment = load("my_env.py:Guess")
        (tmp_path / "here" / "my_env.py").write_text(content)
        looked.clear()
        keys_of(experiment)
        assert build(experiment).batches_per_iteration == 1
        assert len(looked) == 1


@pytest.mark.slow
def test_keys_have_the_class_and_its_source_but_no_path(load, tmp_path):
    first = keys_of(load("my_env.py:Guess"))
    other = tmp_path / "elsewhere"
    assert keys_of(load("my_env.py:Guess", folder=other)) == first
    (other / "deeper").mkdir()
    (other / "my_env.py").rename(other / "deeper" / "my_env.py")
    assert keys_of(load("deeper/my_env.py:Guess", folder=other)) == first
    longer = keys_of(load("my_env.py:Guess", environment_kwargs={"length": 6}))
    (tmp_path / "here" / "my_env.py").write_text(FILE.replace("float(action)", "-float(action)"))
    changed = keys_of(load("my_env.py:Guess"))
    for one, two, three in zip(first, longer, changed, strict=True):
        assert len({one, two, three}) == 3


@pytest.mark.slow
def test_arguments_and_time_limits_are_those_of_the_section(load):
    guess = build(load("my_env.py:Guess", environment_kwargs={"length": 2, "sizes": {"a": 1}}))
    count = build(load("my_env.py:Count", max_episode_steps=3))
    cartpole = build(load("CartPole-v1", max_episode_steps=3))
    for trainer in (guess, count, cartpole):
        trainer.initial_state()
        assert trainer.run_test("test").metrics["mean_episode_length"] == 3
    with pytest.raises(ParameterError, match=r"environment_kwargs: CartPole-v1 got \['size'\]"):
        build(load("CartPole-v1", environment_kwargs={"size": 3})).initial_state()


def test_what_cannot_be_played_so_is_said(load):
    with pytest.raises(ParameterError, match=r"torchrl_sac for 'my_env.py:Count', whose actions"):
        build(load("my_env.py:Count", trainer="torchrl_sac")).initial_state()
