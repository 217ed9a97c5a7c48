"""Wrappers of gymnasium and transforms of TorchRL by name, with their arguments, in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ratchet.errors import ParameterError, UnknownNameError
from ratchet.experiment_files.loading import load_experiment
from ratchet.scenarios import build_scenario_instance
from tasks.tensordict.keys import ArmKeys
from trainers.registry import build_trainer

FILE = '''
import gymnasium
from torchrl.envs import Transform


class Double(gymnasium.Wrapper):
    """Pays ``factor`` times as much."""

    def __init__(self, env, factor=2):
        super().__init__(env)
        self.factor = factor

    def step(self, action):
        seen, reward, terminated, truncated, info = self.env.step(action)
        return seen, self.factor * reward, terminated, truncated, info


class Plus(Transform):
    """Pays ``more`` more."""

    def __init__(self, more=1.0):
        super().__init__(in_keys=["reward"], out_keys=["reward"])
        self.more = more

    def _apply_transform(self, reward):
        return reward + self.more
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
OWN = {"scenario": "gymnasium", "rl": {"frames_per_batch": 16, "minibatch_size": 8}}
STACK = {"name": "FrameStackObservation", "stack_size": 2}
WRAPPERS = [STACK, "FlattenObservation", {"name": "my_wrappers.py:Double", "factor": 3}]
TRANSFORMS = [
    {"name": "CatFrames", "N": 3, "dim": -1, "in_keys": ["observation"]},
    {"name": "VecNormV2", "in_keys": ["observation"]},
    {"name": "my_wrappers.py:Plus", "more": 0.5},
]


@pytest.fixture
def load(tmp_path):
    """Load an experiment from a folder that is not the working folder."""

    def make(*, trainer="torchrl_ppo", folder=tmp_path / "here", transforms=(), **section):
        folder.mkdir(exist_ok=True)
        if not (folder / "my_wrappers.py").exists():
            (folder / "my_wrappers.py").write_text(FILE)
        content = {**(SMALL if trainer.startswith("torchrl_") else OWN), "trainer": trainer}
        content["dataset"] = section.pop("dataset", "CartPole-v1")
        content["gymnasium"] = {
            "num_test_episodes": 2,
            "num_train_seeds": 4,
            "max_episode_steps": 6,
            **section,
        }
        if transforms:
            content["torchrl"] = {**content.get("torchrl", {}), "transforms": list(transforms)}
        (folder / "experiment.yaml").write_text(yaml.safe_dump(content))
        return load_experiment(folder / "experiment.yaml")

    return make


def build(experiment):
    params, settings = experiment.hyper_params, experiment.settings
    instance = build_scenario_instance(params, settings, base_dir=Path(settings.base_dir))
    return build_trainer(params, instance, settings)


def begun(experiment):
    trainer = build(experiment)
    trainer.initial_state()
    return trainer


def check(experiment, reward):
    """Train in one go and cut, compare, and test."""
    whole, cut, resumed = begun(experiment), begun(experiment), build(experiment)
    metrics = whole.run_iterations(0, 2)
    cut.run_iterations(0, 1)
    resumed.state = cut.state
    assert resumed.run_iterations(1, 2) == metrics[1:]
    assert resumed.state == whole.state != cut.state
    assert whole.run_test("test").metrics["agent.mean_episode_reward"] == pytest.approx(reward)
    return whole


def keys_of(experiment):
    keys = ArmKeys("", experiment.hyper_params, base_dir=experiment.settings.base_dir)
    return keys.train(0, 1).key, keys.test("test").key


@pytest.mark.slow
def test_wrappers_are_put_around_simulators_of_the_librarys_trainers(load):
    trainer = check(load(wrappers=WRAPPERS), 6 * 3)
    assert trainer.policy[0].module[0].in_features == 2 * 4


def test_wrappers_are_put_around_those_of_our_own(load):
    trainer = check(load(trainer="vanilla_ppo", wrappers=WRAPPERS), 6 * 3)
    assert trainer.scenario_instance.protocol_handler.spaces.observation_width == 2 * 4


def test_transforms_follow_the_environments_own_and_their_means_resume(load):
    trainer = check(load(transforms=TRANSFORMS), 6 * 1.5)
    assert trainer.policy[0].module[0].in_features == 3 * 4
    assert any("transform" in name for name in trainer.state.tensors)


@pytest.mark.slow
def test_keys_have_names_arguments_and_sources_but_no_paths(load, tmp_path):
    asked = {"wrappers": WRAPPERS, "transforms": TRANSFORMS}
    first = keys_of(load(**asked))
    other = tmp_path / "elsewhere"
    assert keys_of(load(folder=other, **asked)) == first
    changed = [
        keys_of(load()),
        keys_of(load(**(asked | {"wrappers": WRAPPERS[:2]}))),
        keys_of(load(**(asked | {"transforms": TRANSFORMS[:2]}))),
        keys_of(load(**(asked | {"wrappers": [*WRAPPERS[:2], "my_wrappers.py:Double"]}))),
    ]
    (tmp_path / "here" / "my_wrappers.py").write_text(FILE.replace("self.factor *", "2 *"))
    changed.append(keys_of(load(**asked)))
    assert len({first, *changed}) == 6
    own = {"trainer": "vanilla_ppo", "wrappers": WRAPPERS}
    deeper = [{**WRAPPERS[2], "name": "deeper/my_wrappers.py:Double"}]
    (other / "deeper").mkdir()
    (other / "deeper" / "my_wrappers.py").write_text(FILE)
    moved = keys_of(load(folder=other, **(own | {"wrappers": [*WRAPPERS[:2], *deeper]})))
    assert moved == keys_of(load(folder=other, **own))
    assert moved != keys_of(load(folder=other, trainer="vanilla_ppo"))


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"wrappers": ["FlattenObservatoin"]}, UnknownNameError, "mean 'FlattenObservation'"),
        ({"wrappers": ["FrameStackObservation"]}, ParameterError, r"wrappers: Frame\S+ got \[\]"),
        ({"wrappers": ["NormalizeReward"]}, ParameterError, "running means no stage keeps"),
        ({"wrappers": WRAPPERS, "dataset": "mpe2.simple_spread_v3"}, ParameterError, "got .* none"),
        ({"transforms": ["VecNormV3"]}, UnknownNameError, "torchrl.transforms: .*VecNormV2"),
        (
            {"transforms": [{"name": "RewardScaling", "lok": 1}]},
            ParameterError,
            r"torchrl.transforms: RewardScaling got \['lok'\]",
        ),
        (
            {"trainer": "vanilla_ppo", "wrappers": WRAPPERS, "implementation": "batched"},
            ParameterError,
            "not a gymnasium environment",
        ),
    ],
)
def test_what_cannot_be_put_around_is_said(load, asked, error, message):
    with pytest.raises(error, match=message):
        begun(load(**asked))


def test_keys_of_groups_are_lists_in_files():
    from trainers.torchrl.environment import make_transform

    keys = [["agents", "reward"], "reward"]
    made = make_transform("RewardScaling", {"loc": 0.0, "scale": 2.0, "in_keys": keys})
    assert made.in_keys == [("agents", "reward"), "reward"]


def test_they_are_refused_where_a_list_of_defaults_makes_the_environment(load):
    params = load(transforms=["VecNormV2"]).hyper_params
    config = {**params.torchrl.config, "defaults": [{"trainer@trainer": "ppo"}]}
    from trainers.torchrl.configuration import trainer_parameters

    with pytest.raises(ParameterError, match=r"torchrl.transforms: got \['VecNormV2'\], but"):
        trainer_parameters(
            params.replace({"torchrl.config": config, "gymnasium.max_episode_steps": None})
        )
