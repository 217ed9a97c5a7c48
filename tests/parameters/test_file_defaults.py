"""Files build on others by lists of defaults, and overrides may be written as Hydra's users do."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.reading.yaml_files import read_mapping

LIBRARY = Path(__file__).parents[2] / "experiments" / "library_ppo.yaml"
OWN = {"scenario": "gymnasium", "trainer": "torchrl_ppo", "dataset": "CartPole-v1"}


def write(folder, **files):
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(content))
    return folder / f"{next(iter(files))}.yaml"


def section(*overrides, path=LIBRARY):
    return load_experiment(path, overrides).hyper_params.torchrl


def test_a_file_of_the_librarys_may_build_on_another(tmp_path):
    base = yaml.safe_load(LIBRARY.read_text())
    child = {
        "defaults": ["base", {"override optimizer@optimizer": "adamw"}, "_self_"],
        "optimizer": {"lr": 0.5},
    }
    params = load_experiment(write(tmp_path, child=child, base=base)).hyper_params
    assert (params.trainer, params.dataset) == ("torchrl_ppo", "CartPole-v1")
    config = params.torchrl.config
    assert config["optimizer"] == {"lr": 0.5}
    assert {"optimizer@optimizer": "adamw"} in config["defaults"]
    assert len(config["defaults"]) == len(base["defaults"])
    assert config["defaults"][-1] == "_self_"


def test_a_group_may_be_a_file_with_defaults_of_its_own(tmp_path):
    base = yaml.safe_load(LIBRARY.read_text())
    base["defaults"] = [
        e if "optimizer@optimizer" not in e else {"optimizer": "small"} for e in base["defaults"]
    ]
    del base["optimizer"]
    small = {"defaults": ["adamw"], "lr": 0.25}
    path = write(tmp_path, base=base, optimizer__small=small)
    config = load_experiment(path).hyper_params.torchrl.config
    assert config["optimizer"] == {"lr": 0.25}
    assert {"optimizer@optimizer": "adamw"} in config["defaults"]


def test_an_experiment_of_ours_may_build_on_another(tmp_path):
    base = {**OWN, "seed": 3, "optimizer": {"lr": 0.1, "eps": "${optimizer.lr}"}}
    path = write(tmp_path, child={"defaults": ["base"], "seed": 4}, base=base)
    params = load_experiment(path).hyper_params
    assert params.seed == 4
    assert params.torchrl.config == {"optimizer": {"lr": 0.1, "eps": "${optimizer.lr}"}}
    under = write(tmp_path, child={"defaults": ["_self_", "base"], "seed": 4})
    assert load_experiment(under).hyper_params.seed == 3


def test_references_are_filled_in_when_all_files_are_read(tmp_path):
    child = {"defaults": ["base"], "rl": {"lr": 0.5}}
    path = write(tmp_path, child=child, base={"seed": "${rl.lr}"})
    assert read_mapping(path) == {"seed": 0.5, "rl": {"lr": 0.5}}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("child", "the files name each other: child.yaml → child.yaml"),
        ("nowhere", r"there is no file .*nowhere\.yaml"),
        ({"override optimizer": "adam"}, "'optimizer' overrides nothing"),
    ],
)
def test_mistakes_in_lists_are_named(tmp_path, entry, message):
    with pytest.raises(ParameterError, match=message):
        read_mapping(write(tmp_path, child={"defaults": [entry]}))


def test_values_are_added_and_taken_away():
    found = section("+trainer.auto_log_optim_steps=false", "++loss.clip_epsilon=0.1")
    assert found.config["trainer"]["auto_log_optim_steps"] is False
    assert found.config["loss"]["clip_epsilon"] == 0.1
    assert "num_epochs" not in section("~trainer.num_epochs").config["trainer"]
    with pytest.raises(ParameterError, match=r"no 'trainer\.epochs' to remove"):
        section("~trainer.epochs")


def test_options_are_chosen_added_and_taken_away_by_their_package():
    found = section("sampler@replay_buffer.sampler=random", "+hook=early_stopping", "~logger")
    assert found.choices == {
        "sampler@replay_buffer.sampler": "random",
        "hook@hook": "early_stopping",
        "logger": None,
    }
    params = load_experiment(LIBRARY).hyper_params
    changed = params.replace({"sampler@replay_buffer.sampler": "random"})
    assert changed.torchrl.choices == {"sampler@replay_buffer.sampler": "random"}


def test_what_ours_takes_away_has_its_default_again(tmp_path):
    path = write(tmp_path, own={**OWN, "test_size": 0.5})
    assert load_experiment(path, ["~test_size"]).hyper_params.test_size == 0.2


def test_merge_keys_of_yaml_are_read(tmp_path):
    path = tmp_path / "merged.yaml"
    path.write_text("one: &one {a: 1, b: 2}\ntwo:\n  <<: *one\n  b: 3\n")
    assert read_mapping(path)["two"] == {"a": 1, "b": 3}
