"""Configurations written for TorchRL work unchanged, and their mistakes are named."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import yaml

from ratchet import HyperParameters
from ratchet.errors import ParameterError
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.trainers import TORCHRL_ALGORITHMS
from trainers.config_warnings import find_config_warnings
from trainers.registry import trainer_class
from trainers.torchrl import configuration
from trainers.torchrl.configuration import trainer_parameters
from trainers.torchrl.device_placement import place_on
from trainers.torchrl.evaluation_environment import single_environment

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
OWN = {"scenario": "gymnasium", "trainer": "torchrl_sac", "dataset": "Pendulum-v1"}


def write(tmp_path, content):
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_librarys_own_file_is_recognised():
    experiment = load_experiment(EXPERIMENTS / "library_ppo.yaml")
    params = experiment.hyper_params
    assert (params.scenario, params.trainer, params.dataset, params.seed) == (
        "gymnasium",
        "torchrl_ppo",
        "CartPole-v1",
        1,
    )
    trainer = trainer_parameters(params)
    assert trainer["_target_"].endswith("_make_ppo_trainer")
    assert trainer["collector"]["frames_per_batch"] == 1024
    assert trainer["replay_buffer"]["storage"]["max_size"] == 1024
    assert "seed" not in params.torchrl.config["trainer"]


def test_its_overrides_are_the_librarys_as_well():
    overrides = [
        "trainer.total_frames=2048",
        "training_env.create_env_fn.base_env.env_name=Acrobot-v1",
        "networks.policy_network.num_cells=[8,8]",
        "optimizer=adamw",
        "optimizer.weight_decay=0.1",
        "logger=tensorboard",
        "seed=5",
        "torchrl.keep_best=true",
        "settings.num_threads=1",
    ]
    params = load_experiment(EXPERIMENTS / "library_ppo.yaml", overrides).hyper_params
    trainer = trainer_parameters(params)
    assert trainer["total_frames"] == 2048
    assert trainer["optimizer"]["_target_"] == "torch.optim.AdamW"
    assert trainer["optimizer"]["weight_decay"] == 0.1
    assert trainer["collector"]["policy"]["module"]["module"]["num_cells"] == [8, 8]
    assert trainer["logger"]["_target_"].endswith("TensorboardLogger")
    assert params.seed == 5
    assert params.torchrl.keep_best


def test_groups_may_stand_as_sections_or_in_one_section(tmp_path):
    sections = {
        **OWN,
        "optimizer": {"lr": 0.01},
        "collector": {"frames_per_batch": 50},
        "replay_buffer": {"storage": {"max_size": "${collector.total_frames}"}},
        "torchrl": {"config": {"trainer": {"total_frames": 500, "seed": 9}}},
    }
    nested = {
        **OWN,
        "seed": 9,
        "torchrl": {
            "config": {
                "optimizer": {"lr": 0.01},
                "collector": {"frames_per_batch": 50},
                "replay_buffer": {"storage": {"max_size": "${collector.total_frames}"}},
                "trainer": {"total_frames": 500},
            }
        },
    }
    one = load_experiment(write(tmp_path, sections)).hyper_params
    assert one == load_experiment(write(tmp_path, nested)).hyper_params
    trainer = trainer_parameters(one)
    assert trainer["optimizer"]["lr"] == 0.01
    assert trainer["optim_steps_per_batch"] == 50  # refers to the collector's
    assert trainer["total_frames"] == 500


@pytest.mark.slow
def test_changes_of_sweeps_and_forks_take_the_librarys_names_too():
    params = HyperParameters(**OWN).replace(
        {"trainer.total_frames": 500, "optimizer.lr": 0.5, "loss.num_qvalue_nets": 3}
    )
    assert params.trainer == "torchrl_sac"
    trainer = trainer_parameters(params)
    assert (trainer["total_frames"], trainer["optimizer"]["lr"]) == (500, 0.5)
    assert trainer["loss_module"]["num_qvalue_nets"] == 3
    assert HyperParameters.from_dict(params.to_dict()) == params
    other = params.replace({"trainer": "torchrl_cql"})
    assert other.trainer == "torchrl_cql"


@pytest.mark.in_turn(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer.learning_rate": 1}, "optimizer.learning_rate"),
        ({"optimizer": "adamm"}, "adamm"),
        ({"target_net": "soft"}, "target_net: unknown parameter"),
        ({"sampler": "random"}, "got the option 'random', but `defaults` has none"),
        ({"replay_buffer.batch_size": "${nowhere.size}"}, "nowhere"),
        ({"dataset": "CartPole-v1"}, "torchrl_sac for 'CartPole-v1', whose actions are discrete"),
        ({"dataset": "CarPole-v1"}, "cannot make the environment 'CarPole-v1'"),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(ParameterError, match=message.replace("(", r"\(")):
        trainer_parameters(HyperParameters(**OWN).replace(change))


def test_a_file_without_an_algorithm_or_with_two_environments_is_refused(tmp_path):
    content = yaml.safe_load((EXPERIMENTS / "library_ppo.yaml").read_text())
    without = {
        **content,
        "defaults": [e for e in content["defaults"] if "trainer@trainer" not in e],
    }
    with pytest.raises(ParameterError, match="the trainer is None, expected an entry such as"):
        load_experiment(write(tmp_path, without))
    two = {**content, "other_env": {"env_name": "Pendulum-v1"}}
    with pytest.raises(ParameterError, match="expected one environment"):
        load_experiment(write(tmp_path, two))


def test_a_misspelt_section_of_ours_is_no_group(tmp_path):
    with pytest.raises(ParameterError, match="sede: unknown parameter"):
        load_experiment(write(tmp_path, {**OWN, "sede": 3}))


@pytest.mark.slow
def test_raising_the_number_of_frames_leaves_the_keys_as_they_are(small):
    """Unless a schedule reads it, as the annealing of exploration may."""
    from trainers.torchrl.algorithms import DqnTrainer

    def key(**changes):
        params = small.parameters("dqn", **changes)
        return DqnTrainer.stage_key_parameters(params, "train")

    assert key() == key(trainer__total_frames=10_000)
    assert key() == key(collector__total_frames=10_000)
    assert key() != key(optimizer__lr=0.1)
    annealed = {"trainer__annealing_num_steps": "${trainer.total_frames}"}
    assert key(**annealed) != key(trainer__total_frames=10_000, **annealed)
    test = DqnTrainer.stage_key_parameters(small.parameters("dqn"), "test")
    assert test == DqnTrainer.stage_key_parameters(
        small.parameters("dqn", optimizer__lr=0.1), "test"
    )


@pytest.mark.slow
def test_iterations_are_counted_in_frames(small):
    from trainers.torchrl.algorithms import PpoTrainer

    params = small.parameters("ppo")  # 192 frames, 24 a batch, 2 batches an iteration
    assert PpoTrainer.count_train_iterations(params) == 4
    plain = params.replace({"torchrl.batches_per_iteration": None, "trainer.total_frames": 5000})
    assert PpoTrainer.count_train_iterations(plain) == 5  # 42 batches make 1,008 frames


def test_one_environment_is_made_of_what_is_collected_from_many():
    inner = {"_target_": "TransformedEnv", "_partial_": True, "base_env": {"num_envs": 4}}
    batched = {"_target_": "x.make_batched_env", "num_workers": 3, "create_env_fn": inner}
    expected = {
        "_target_": "TransformedEnv",
        "_partial_": False,
        "base_env": {"num_envs": 0, "_partial_": False},
    }
    assert single_environment(batched) == expected
    assert single_environment([batched, batched]) == expected
    outer = {"_target_": "TransformedEnv", "base_env": batched}
    assert single_environment(outer)["base_env"] == expected


def test_a_device_is_put_where_networks_and_samples_lie(small):
    parameters = trainer_parameters(small.parameters("ppo"))
    assert place_on(parameters, "cpu") == parameters
    placed = place_on(parameters, "cuda:1")
    assert place_on(parameters, "cuda")["collector"]["policy_device"] == "cuda:0"
    assert placed["collector"]["policy_device"] == "cuda:1"
    assert placed["collector"]["env_device"] == "cpu"
    critic = placed["loss_module"]["critic_network"]
    assert critic["device"] == critic["made"]["network"]["device"] == "cuda:1"
    assert placed["replay_buffer"]["storage"]["device"] == "cuda:1"
    environment = placed["collector"]["create_env_fn"]
    assert environment == parameters["collector"]["create_env_fn"]


def test_options_are_added_replaced_and_taken_away_as_in_hydra():
    overrides = [
        "sampler@replay_buffer.sampler=random",
        "~replay_buffer.sampler.drop_last",
        "~replay_buffer.sampler.shuffle",
        "+transform@transform2=double_to_float",
        'training_env.create_env_fn.transform.transforms=["${transform0}", "${transform2}"]',
        "~logger",
    ]
    trainer = trainer_parameters(
        load_experiment(EXPERIMENTS / "library_ppo.yaml", overrides).hyper_params
    )
    assert trainer["replay_buffer"]["sampler"]["_target_"].endswith("RandomSampler")
    environment = trainer["collector"]["create_env_fn"]["create_env_fn"]
    names = [one["_target_"].rpartition(".")[2] for one in environment["transform"]["transforms"]]
    assert names == ["StepCounter", "DoubleToFloat"]
    assert "_target_" not in trainer["logger"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"logger": "csv"},
        {"logger@logger": "mlflow"},
        {"logger": {"exp_name": "${hydra:job.name}"}, "trainer.logger": "${logger}"},
        {"checkpoint": {"folder": "${nowhere}"}, "trainer.checkpoint": "${checkpoint}"},
        {"wandb": {"project": "x"}},
    ],
)
def test_what_only_says_where_results_go_is_ignored(change):
    plain = HyperParameters(**OWN)
    changed = trainer_parameters(plain.replace(change))
    unread = {"logger", "checkpoint"}
    expected = trainer_parameters(plain)
    assert {n: v for n, v in changed.items() if n not in unread} == {
        name: value for name, value in expected.items() if name not in unread
    }


def test_a_configuration_is_resolved_once_and_each_caller_gets_a_copy(monkeypatch):
    params = HyperParameters(**OWN).replace({"optimizer.lr": 0.0123})
    first = trainer_parameters(params)
    monkeypatch.setattr(configuration, "_composed", None)
    first["collector"].clear()
    assert trainer_parameters(params)["collector"]["frames_per_batch"] > 0


def test_resolvers_are_called_each_time(monkeypatch):
    params = HyperParameters(**OWN).replace({"optimizer.lr": "${oc.decode:${oc.env:TEST_LR}}"})
    for lr in ("0.25", "0.5"):
        monkeypatch.setenv("TEST_LR", lr)
        assert trainer_parameters(params)["optimizer"]["lr"] == float(lr)


LIBRARY_FILE = EXPERIMENTS / "library_ppo.yaml"
MAP = "trainer.weight_update_map={policy: loss_module.actor_network}"


def library_params(*overrides):
    return load_experiment(LIBRARY_FILE, list(overrides)).hyper_params


def check_build(params):
    trainer_class(params).check_build(params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "loss._target_=torchrl.objectives.A2CLoss",
            r"config\.loss: got A2CLoss, expected PPOLoss",
        ),
        (
            "trainer._target_=torchrl.trainers.algorithms.configs.trainers._make_a2c_trainer",
            r"config\.trainer: got A2CTrainer, expected PPOTrainer",
        ),
        ("collector=multi_sync", r"weight_update_map=\{policy: loss_module.actor_network\}"),
        ("models.policy_model.in_keys=[absent]", "cannot be instantiated"),
        ("collector.track_policy_version=true", "not supported for policy version tracking"),
        ("trainer.async_collection=true", r"async_collection: got true"),
        ("replay_buffer.storage.ndim=2", r"storage: got \w+ with ndim 2"),
    ],
)
def test_what_a_run_refuses_is_refused_before_it(override, message):
    params = library_params(override)
    with pytest.raises(ParameterError, match=message):
        check_build(params)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["loss._target_=torchrl.objectives.ClipPPOLoss"],
        ["training_env.batched_env_type=parallel", "training_env.num_workers=3"],
        ["collector=multi_async", "collector.num_workers=2", MAP],
    ],
)
def test_a_trial_build_starts_no_processes(overrides):
    before = set(multiprocessing.active_children())
    check_build(library_params(*overrides))
    assert set(multiprocessing.active_children()) == before


@pytest.mark.slow
def test_a_trial_build_accepts_all_algorithms(small):
    for name in TORCHRL_ALGORITHMS:
        check_build(small.parameters(name))


@pytest.mark.slow
def test_plans_name_what_is_not_reproducible_or_not_as_recorded(tmp_path):
    def cautions(*overrides):
        return list(find_config_warnings({"main": library_params(*overrides)}))

    assert cautions() == []
    (caution,) = cautions("collector=multi_async", MAP)
    assert "MultiAsyncCollector runs ahead of the learner" in caution
    (caution,) = cautions("loss._target_=my_project.CustomLoss")
    assert "recorded as torchrl_ppo, and learns with my_project.CustomLoss" in caution
    (caution,) = cautions("trainer.total_frames=20000")
    assert "training ends after 16384 frames" in caution
    assert cautions("collector.total_frames=20000") == []


@pytest.mark.slow
def test_training_ends_with_the_first_of_two_numbers_of_frames(small):
    def iterations(params):
        return trainer_class(params).count_train_iterations(params)

    per_iteration = ["torchrl.batches_per_iteration=1"]
    assert iterations(library_params(*per_iteration)) == 16
    for one, other in ((2048, 4096), (4096, 2048)):
        frames = [f"trainer.total_frames={one}", f"collector.total_frames={other}"]
        assert iterations(library_params(*per_iteration, *frames)) == 2
    unlimited = ["trainer.total_frames=4096", "collector.total_frames=-1"]
    assert iterations(library_params(*per_iteration, *unlimited)) == 4
    skipped = ["trainer.frame_skip=2", "trainer.total_frames=8192", "collector.total_frames=2048"]
    assert iterations(library_params(*per_iteration, *skipped)) == 2
    assert iterations(small.parameters("ppo", trainer__total_frames=200_016)) == 4167
    assert iterations(small.parameters("ppo", collector__total_frames=96)) == 2
