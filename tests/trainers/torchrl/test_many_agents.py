"""Configurations of the library's for groups of agents: named, trained, resumed and tested."""

from __future__ import annotations

import pytest
import torch
import yaml

from ratchet.experiment_files.loading import load_experiment
from ratchet.scenarios import build_scenario_instance
from trainers.registry import trainer_class
from trainers.torchrl.evaluation_environment import single_environment
from trainers.torchrl.recorder import finished_returns

MODULES = "torchrl.trainers.algorithms.configs.modules"
DEFAULTS = [
    {"env@training_env": "transformed_env"},
    {"transform@training_env.transform": "reward_sum"},
    {"transform@postproc0": "expand_as"},
    {"transform@postproc1": "expand_as"},
    {"transform@postproc": "compose"},
    {"collector@collector": "sync"},
    {"replay_buffer@replay_buffer": "base"},
    {"storage@replay_buffer.storage": "lazy_tensor"},
    {"writer@replay_buffer.writer": "round_robin"},
    {"sampler@replay_buffer.sampler": "random"},
    {"trainer@trainer": "ppo"},
    {"optimizer@optimizer": "adam"},
    {"loss@loss": "ppo"},
    {"logger@logger": "csv"},
]


def network(outputs, centralized):
    return {
        "_target_": "torchrl.modules.models.multiagent.MultiAgentMLP",
        "n_agent_inputs": 18,
        "n_agent_outputs": outputs,
        "n_agents": 3,
        "centralized": centralized,
        "share_params": True,
        "depth": 1,
        "num_cells": 8,
    }


def expanded(place):
    return {
        "in_key": ["next", place],
        "ref_key": ["next", "agent", "reward"],
        "out_key": ["next", "agent", place],
    }


def of_group(*names):
    return {f"{name}_key": ["agent", name] for name in names}


def configuration():
    """MAPPO: one policy that three agents share, and a critic that sees them all."""
    return {
        "defaults": [*DEFAULTS, "_self_"],
        "seed": 3,
        "networks": {"policy": network(10, False), "critic": network(1, True)},
        "models": {
            "policy": {
                "_target_": f"{MODULES}._make_tanh_normal_model",
                "network": "${networks.policy}",
                "return_log_prob": True,
                "in_keys": [["agent", "observation"]],
                "param_keys": [["agent", "loc"], ["agent", "scale"]],
                "out_keys": [["agent", "action"]],
                "low": 0.0,
                "high": 1.0,
            },
            "critic": {
                "_target_": f"{MODULES}._make_value_model",
                "network": "${networks.critic}",
                "in_keys": [["agent", "observation"]],
            },
        },
        "training_env": {
            "base_env": {
                "_target_": "torchrl.envs.libs.pettingzoo.PettingZooWrapper",
                "env": {
                    "_target_": "mpe2.simple_spread_v3.parallel_env",
                    "continuous_actions": True,
                    "max_cycles": 5,
                },
                "group_map": {"agent": ["agent_0", "agent_1", "agent_2"]},
            },
            "transform": {
                "in_keys": [["agent", "reward"]],
                "out_keys": [["agent", "episode_reward"]],
            },
        },
        "postproc0": expanded("done"),
        "postproc1": expanded("terminated"),
        "postproc": {"transforms": ["${postproc0}", "${postproc1}"]},
        "collector": {
            "create_env_fn": "${training_env}",
            "policy": "${models.policy}",
            "frames_per_batch": 20,
            "use_buffers": False,
            "total_frames": 80,
            "postproc": "${postproc}",
            "_partial_": True,
        },
        "replay_buffer": {"storage": {"max_size": 20}, "batch_size": 10},
        "loss": {
            "actor_network": "${models.policy}",
            "critic_network": "${models.critic}",
            "normalize_advantage": False,
        },
        "trainer": {
            "collector": "${collector}",
            "optimizer": "${optimizer}",
            "replay_buffer": "${replay_buffer}",
            "loss_module": "${loss}",
            "total_frames": "${collector.total_frames}",
            "seed": "${seed}",
            "optim_steps_per_batch": 2,
            "num_epochs": 2,
            **of_group("reward", "episode_reward", "done", "terminated", "action", "observation"),
        },
    }


def write(tmp_path, **changes):
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump({**configuration(), **changes}))
    return path


def test_an_environment_of_another_library_has_its_name_and_the_files_seed(tmp_path):
    content = configuration()
    content["defaults"].insert(1, {"env@training_env.base_env": "vmas"})
    content["which"] = {"scenario": "balance"}
    content["training_env"]["base_env"] = {"scenario": "${which.scenario}", "seed": "${seed}"}
    path = tmp_path / "vmas.yaml"
    path.write_text(yaml.safe_dump(content))
    params = load_experiment(path).hyper_params
    assert (params.dataset, params.seed, params.trainer) == ("balance", 3, "torchrl_ppo")
    changed = load_experiment(path, ["seed=5", "which.scenario=navigation"]).hyper_params
    assert (changed.dataset, changed.seed) == ("navigation", 5)
    from trainers.torchrl.configuration import trainer_parameters

    environment = trainer_parameters(changed)["collector"]["create_env_fn"]
    assert environment["base_env"]["seed"] == 5


def test_a_simulator_that_has_no_form_without_a_batch_keeps_one():
    vmas = {"_target_": "torchrl.envs.libs.vmas.VmasEnv", "num_envs": 600}
    assert single_environment(vmas)["num_envs"] == 1


@pytest.mark.slow
def test_a_group_trains_resumes_and_is_tested(tmp_path):
    from ratchet import ExperimentSettings

    test = {"num_test_episodes": 2}
    path = write(tmp_path, dataset="mpe2.simple_spread_v3", gymnasium=test)
    params = load_experiment(path, ["torchrl.batches_per_iteration=1"]).hyper_params
    assert params.replace({"optimizer.lr": 0.1}).dataset == params.dataset
    instance = build_scenario_instance(params, ExperimentSettings())
    whole, cut, resumed = (
        trainer_class(params, None)(params, instance, ExperimentSettings()) for _ in range(3)
    )
    assert whole.initial_state() == cut.initial_state()
    metrics = whole.run_iterations(0, 2)
    cut.run_iterations(0, 1)
    resumed.state = cut.state
    assert resumed.run_iterations(1, 2) == metrics[1:]
    assert resumed.state == whole.state
    assert metrics[0]["episode_return"] < 0
    result = whole.run_test()
    assert result.metrics["agent.mean_episode_reward"] < 0
    assert result.metrics["mean_episode_length"] == 5
    assert len(result.table["reward.agent"]) == 2


def test_returns_of_a_group_are_means_over_its_agents():
    from tensordict import TensorDict

    sums = torch.tensor([[[1.0], [3.0]], [[5.0], [9.0]]])
    done = torch.tensor([[False], [True]])
    group = TensorDict({"episode_reward": sums}, batch_size=[2, 2])
    after = TensorDict({"done": done, "agents": group}, batch_size=[2])
    batch = TensorDict({"next": after}, batch_size=[2])
    assert finished_returns(batch) == [7.0]


@pytest.mark.slow
def test_a_loss_that_makes_its_estimator_when_it_is_called_resumes(small):
    whole, cut, resumed = (small.make("sac", loss__gamma=None) for _ in range(3))
    whole.initial_state()
    cut.initial_state()
    metrics = whole.run_iterations(0, 2)
    cut.run_iterations(0, 1)
    resumed.state = cut.state
    assert resumed.run_iterations(1, 2) == metrics[1:]
    assert resumed.state == whole.state
