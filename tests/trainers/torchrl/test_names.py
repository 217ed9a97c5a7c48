"""A run is recorded as what it trains: names follow the library's configuration, or refuse it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ratchet import HyperParameters
from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment
from trainers.torchrl.configuration import trainer_parameters

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
LIBRARY = EXPERIMENTS / "library_ppo.yaml"
ENV_NAME = "training_env.create_env_fn.base_env.env_name"
OWN = {"scenario": "gymnasium", "trainer": "torchrl_ppo", "dataset": "CartPole-v1"}


def loaded(*overrides, path=LIBRARY):
    return load_experiment(path, overrides).hyper_params


def write(tmp_path, content):
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
def test_the_recorded_environment_is_the_one_that_is_played():
    params = loaded(f"{ENV_NAME}=Acrobot-v1")
    assert params.dataset == "Acrobot-v1"
    environment = trainer_parameters(params)["collector"]["create_env_fn"]["create_env_fn"]
    assert environment["base_env"]["env_name"] == "Acrobot-v1"


def test_changes_of_forks_and_arms_are_followed_too(tmp_path):
    assert loaded().replace({ENV_NAME: "Acrobot-v1"}).dataset == "Acrobot-v1"
    changed = {"training_env": {"create_env_fn": {"base_env": {"env_name": "Acrobot-v1"}}}}
    content = yaml.safe_load(LIBRARY.read_text())
    path = write(tmp_path, {**content, "arms": {"other": changed}})
    experiment = load_experiment(path)
    assert experiment.hyper_params.dataset == "CartPole-v1"
    assert experiment.arms["other"].dataset == "Acrobot-v1"


def test_a_referred_to_environment_has_its_name(tmp_path):
    content = yaml.safe_load(LIBRARY.read_text())
    content["which"] = {"name": "Acrobot-v1"}
    content["training_env"]["create_env_fn"]["base_env"]["env_name"] = "${which.name}"
    path = write(tmp_path, content)
    assert load_experiment(path).hyper_params.dataset == "Acrobot-v1"
    assert loaded("which.name=CartPole-v1", path=path).dataset == "CartPole-v1"


def test_another_algorithm_is_the_librarys_option():
    params = loaded("trainer=reinforce", "loss=reinforce", "trainer.total_frames=512")
    assert params.trainer == "torchrl_reinforce"
    assert params.torchrl.choices == {"trainer": "reinforce", "loss": "reinforce"}
    assert params.torchrl.config["trainer"]["total_frames"] == 512
    assert params.replace({"seed": 3}).trainer == "torchrl_reinforce"
    assert HyperParameters.from_dict(params.to_dict()) == params


@pytest.mark.parametrize("override", ["trainer=a2c", "loss=a2c", "loss@loss=a2c"])
def test_trainer_and_loss_of_different_algorithms_are_refused(tmp_path, override):
    with pytest.raises(ParameterError, match="would be recorded as an algorithm"):
        loaded(override)
    assert loaded("trainer=a2c", "loss=a2c").trainer == "torchrl_a2c"
    path = write(tmp_path, OWN)
    with pytest.raises(ParameterError, match="got 'a2c' with the trainer 'ppo'"):
        loaded("loss=a2c", path=path)


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("trainer=torchrl_a2c", "write `trainer=a2c loss=a2c`"),
        ("dataset=Acrobot-v1", f"write `{ENV_NAME}=Acrobot-v1`"),
    ],
)
def test_a_name_that_its_configuration_contradicts_is_refused(override, advice):
    with pytest.raises(ParameterError) as error:
        loaded(override)
    assert advice in str(error.value)
    name, _, value = override.partition("=")
    with pytest.raises(ParameterError):
        loaded().replace({name: value})


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("training_env.base_env.env_name=Acrobot-v1", "Write `dataset=Acrobot-v1` alone"),
        ("trainer=a2c", "Write `trainer=torchrl_a2c`"),
    ],
)
def test_without_a_list_of_defaults_the_names_decide(tmp_path, override, advice):
    path = write(tmp_path, OWN)
    with pytest.raises(ParameterError) as error:
        loaded(override, path=path)
    assert advice in str(error.value)
    assert loaded("dataset=Acrobot-v1", "trainer=torchrl_a2c", path=path).dataset == "Acrobot-v1"


def test_a_file_that_says_both_says_the_same(tmp_path):
    content = yaml.safe_load(LIBRARY.read_text())
    config = {name: value for name, value in content.items() if name != "seed"}
    both = {**OWN, "torchrl": {"config": config}}
    assert load_experiment(write(tmp_path, both)).hyper_params.dataset == "CartPole-v1"
    with pytest.raises(ParameterError, match="got 'torchrl_a2c', but the configuration"):
        load_experiment(write(tmp_path, {**both, "trainer": "torchrl_a2c"}))
