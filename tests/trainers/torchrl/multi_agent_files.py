"""Small files in the form of TorchRL's VMAS configurations: nine, five built on others.

They are complete, refer to their own sections (``env``, ``model``, ``train``), and name a logger,
checkpoints and a job's folder that Ratchet does not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

NAMES = ("mappo", "ippo", "maddpg", "iddpg", "masac", "isac", "qmix", "vdn", "iql")
_MODULES = "torchrl.trainers.algorithms.configs.modules"
_SEEN, _ACTION = ["agents", "observation"], ["agents", "action"]
_GROUPS = {
    "env@training_env": "transformed_env",
    "env@training_env.base_env": "vmas",
    "transform@training_env.transform": "reward_sum",
    "transform@spread_done": "expand_as",
    "transform@spread_terminated": "expand_as",
    "transform@postproc": "compose",
    "collector@collector": "sync",
    "replay_buffer@replay_buffer": "base",
    "storage@replay_buffer.storage": "lazy_tensor",
    "writer@replay_buffer.writer": "round_robin",
    "sampler@replay_buffer.sampler": "random",
    "optimizer@optimizer": "adam",
    "logger@logger": "csv",
}


def write_files(folder: Path) -> None:
    """Write all nine."""
    for name, content in _files().items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def _files() -> dict[str, dict[str, Any]]:
    independent = {"model": {"centralized_critic": False}}
    return {
        "mappo": _mappo(),
        "ippo": {"defaults": ["mappo", "_self_"], **independent},
        "maddpg": _maddpg(),
        "iddpg": {"defaults": ["maddpg", "_self_"], **independent},
        "masac": _masac(),
        "isac": {"defaults": ["masac", "_self_"], **independent},
        "qmix": _qmix(),
        "vdn": _vdn(),
        "iql": _iql(),
    }


def _common(
    algorithm: str, groups: Mapping[str, str], policy: str, *, continuous: bool = True
) -> dict[str, Any]:
    chosen = {**_GROUPS, "trainer@trainer": algorithm, **groups}
    return {
        "defaults": [*({group: option} for group, option in chosen.items()), "_self_"],
        "seed": 3,
        "env": {"scenario_name": "balance", "n_agents": 3, "max_steps": 5, "vmas_envs": 2},
        "model": {"shared_parameters": True, "centralized_critic": True},
        "train": {"device": "cpu", "minibatch_size": 8, "lr": 5e-4},
        "training_env": {
            "base_env": {
                "scenario": "${env.scenario_name}",
                "num_envs": "${env.vmas_envs}",
                "continuous_actions": continuous,
                "max_steps": "${env.max_steps}",
                "device": "${train.device}",
                "seed": "${seed}",
                "scenario_kwargs": {"n_agents": "${env.n_agents}"},
            },
            "transform": {
                "in_keys": [["agents", "reward"]],
                "out_keys": [["agents", "episode_reward"]],
            },
        },
        "spread_done": _spread("done"),
        "spread_terminated": _spread("terminated"),
        "postproc": {"transforms": ["${spread_done}", "${spread_terminated}"]},
        "collector": {
            "create_env_fn": "${training_env}",
            "policy": policy,
            "frames_per_batch": 20,
            "total_frames": 60,
            "device": "${train.device}",
            "storing_device": "${train.device}",
            "postproc": "${postproc}",
            "_partial_": True,
        },
        "replay_buffer": {
            "storage": {"max_size": "${collector.frames_per_batch}", "ndim": 1},
            "writer": {"compilable": False},
            "batch_size": "${train.minibatch_size}",
        },
        "optimizer": {"lr": "${train.lr}"},
        "logger": {"exp_name": "${env.scenario_name}"},
        "trainer": {
            "collector": "${collector}",
            "optimizer": "${optimizer}",
            "replay_buffer": "${replay_buffer}",
            "loss_module": "${loss}",
            "logger": "${logger}",
            "total_frames": "${collector.total_frames}",
            "progress_bar": True,
            "seed": "${seed}",
            "save_trainer_file": None,
            "optim_steps_per_batch": 2,
            "action_key": _ACTION,
            "observation_key": _SEEN,
            **_of_agents("reward", "episode_reward", "done", "terminated"),
        },
        "hydra": {"job": {"chdir": True}},
    }


def _mappo() -> dict[str, Any]:
    content = _common("ppo", {"loss@loss": "ppo"}, "${models.policy}")
    content["networks"] = {"policy": _network(16, 4), "critic": _network(16, 1, critic=True)}
    content["models"] = {"policy": _normal_policy(), "critic": _critic([_SEEN])}
    networks = {"actor_network": "${models.policy}", "critic_network": "${models.critic}"}
    content["loss"] = {**networks, "normalize_advantage": False}
    content["trainer"] |= {**networks, "num_epochs": 2, "add_gae": True, "gae": None}
    return content


def _masac() -> dict[str, Any]:
    groups = {"loss@loss": "sac", "target_net_updater@target_net_updater": "soft"}
    content = _common("sac", groups, "${models.policy}")
    content["networks"] = {"policy": _network(16, 4), "critic": _network(18, 1, critic=True)}
    critic = _critic([_SEEN, _ACTION], out_keys=["state_action_value"])
    content["models"] = {"policy": _normal_policy(), "critic": critic}
    content["loss"] = {
        "actor_network": "${models.policy}",
        "qvalue_network": "${models.critic}",
        "num_qvalue_nets": 2,
    }
    _learn_with_targets(content)
    return content


def _maddpg() -> dict[str, Any]:
    groups = {
        "loss@loss": "ddpg",
        "target_net_updater@target_net_updater": "soft",
        "exploration@models.exploration": "additive_gaussian",
    }
    content = _common("ddpg", groups, "${models.policy}")
    content["networks"] = {"policy": _network(16, 2), "critic": _network(18, 1, critic=True)}
    content["models"] = {
        "scorer": _made("tensordict_module", module="${networks.policy}", in_keys=[_SEEN])
        | {"out_keys": [["agents", "param"]]},
        "squasher": _made("tanh_module", in_keys=[["agents", "param"]], out_keys=[_ACTION])
        | {"low": -1.0, "high": 1.0},
        "policy": _made(
            "tensordict_sequential", modules=["${models.scorer}", "${models.squasher}"]
        ),
        "exploration": {"annealing_num_steps": 100, "action_key": _ACTION},
        "critic": _critic([_SEEN, _ACTION], out_keys=["state_action_value"]),
    }
    content["loss"] = {"actor_network": "${models.policy}", "value_network": "${models.critic}"}
    _learn_with_targets(content)
    return content


def _qmix() -> dict[str, Any]:
    groups = {
        "network@networks.mixer": "qmixer",
        "loss@mixer_loss": "mixer",
        "target_net_updater@mixer_updater": "soft",
    }
    content = _common("dqn", groups, "${models.policy}", continuous=False)
    content["networks"] = {
        "policy": _network(16, 9),
        "mixer": {"state_shape": ["${env.n_agents}", 16], "n_agents": "${env.n_agents}"},
    }
    chosen = ["agents", "chosen_action_value"]
    content["models"] = {
        "policy": _made("qvalue_model", network="${networks.policy}", in_keys=[_SEEN])
        | {"action_space": "categorical", "action_key": _ACTION}
        | {"action_value_key": ["agents", "action_value"], "chosen_action_value_key": chosen},
        "mixer": _mixer("mixer", [chosen, _SEEN]),
    }
    content["mixer_loss"] = {
        "local_value_network": "${models.policy}",
        "mixer_network": "${models.mixer}",
        "action_space": "categorical",
        "reward_key": "reward",
        "action_key": _ACTION,
        "action_value_key": ["agents", "action_value"],
        "local_value_key": chosen,
        "global_value_key": "chosen_action_value",
    }
    content["mixer_updater"] = {"tau": 0.005}
    content |= {"loss": "${mixer_loss}", "target_net_updater": "${mixer_updater}"}
    content["trainer"] |= {
        "target_net_updater": "${target_net_updater}",
        "value_network": "${models.policy}",
        "annealing_num_steps": 100,
        "mixing_strategy": "qmix",
        "aggregated_reward_key": "reward",
        "aggregated_episode_reward_key": "episode_reward",
        "done_key": "done",
        "terminated_key": "terminated",
    }
    return content


def _vdn() -> dict[str, Any]:
    return {
        "defaults": ["qmix", {"network@networks.sum": "vdn_mixer"}, "_self_"],
        "networks": {"sum": {"n_agents": "${env.n_agents}"}},
        "models": {"mixer": _mixer("sum", [["agents", "chosen_action_value"]])},
        "trainer": {"mixing_strategy": "vdn"},
    }


def _iql() -> dict[str, Any]:
    return {
        "defaults": [
            "qmix",
            {"loss@own_loss": "dqn"},
            {"target_net_updater@own_updater": "hard"},
            "_self_",
        ],
        "own_loss": {
            "value_network": "${models.policy}",
            "delay_value": True,
            "action_space": "categorical",
            **_of_agents("reward", "done", "terminated", "action", "action_value"),
            "value_key": ["agents", "chosen_action_value"],
        },
        "own_updater": {"value_network_update_interval": 3},
        "loss": "${own_loss}",
        "target_net_updater": "${own_updater}",
        "trainer": {"mixing_strategy": "iql", **_of_agents("done", "terminated")},
    }


def _learn_with_targets(content: dict[str, Any]) -> None:
    content["target_net_updater"] = {"tau": 0.005}
    content["trainer"] |= {
        "target_net_updater": "${target_net_updater}",
        "actor_network": "${models.policy}",
        "critic_network": "${models.critic}",
    }


def _network(inputs: int, outputs: int, *, critic: bool = False) -> dict[str, Any]:
    return {
        "_target_": "torchrl.modules.models.multiagent.MultiAgentMLP",
        "n_agent_inputs": inputs,
        "n_agent_outputs": outputs,
        "n_agents": "${env.n_agents}",
        "centralized": "${model.centralized_critic}" if critic else False,
        "share_params": "${model.shared_parameters}",
        "depth": 1,
        "num_cells": 8,
        "activation_class": {"_target_": "torch.nn.Tanh", "_partial_": True},
    }


def _made(what: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{_MODULES}._make_{what}", **arguments}


def _critic(in_keys: list[Any], **arguments: Any) -> dict[str, Any]:
    return _made("value_model", network="${networks.critic}", in_keys=in_keys, **arguments)


def _normal_policy() -> dict[str, Any]:
    return _made("tanh_normal_model", network="${networks.policy}", return_log_prob=True) | {
        "in_keys": [_SEEN],
        "param_keys": [["agents", "loc"], ["agents", "scale"]],
        "out_keys": [_ACTION],
    }


def _mixer(network: str, in_keys: list[Any]) -> dict[str, Any]:
    module = f"${{networks.{network}}}"
    made = _made("tensordict_module", module=module, in_keys=in_keys)
    return made | {"out_keys": ["chosen_action_value"]}


def _spread(flag: str) -> dict[str, Any]:
    return {
        "in_key": ["next", flag],
        "ref_key": ["next", "agents", "reward"],
        "out_key": ["next", "agents", flag],
    }


def _of_agents(*names: str) -> dict[str, list[str]]:
    return {f"{name}_key": ["agents", name] for name in names}
