"""Public names and signatures are frozen: changes here break user code."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

NAMES = {
    "ratchet": {"HyperParameters": None, "ExperimentSettings": None},
    "ratchet.parameters": {
        "HyperParameters": None,
        "ExperimentSettings": None,
        "SubParameters": None,
        "register_parameters": "name, *, trainers, protocols, scenarios",
        "register_agent_parameters": "scenario",
    },
    "ratchet.experiment_files": {"load_experiment": "path, overrides, names"},
    "ratchet.parameters.loading": {"load_experiment": "path, overrides, names"},
    "ratchet.protocols": {
        "ProtocolHandler": None,
        "SingleVerifierProtocolHandler": None,
        "DeterministicSingleVerifierProtocolHandler": None,
        "build_protocol_handler": "hyper_params, *, base_dir",
        "register_protocol_handler": "name",
    },
    "ratchet.scenarios": {
        "ScenarioInstance": None,
        "build_scenario_instance": ("hyper_params, settings, *, datasets, trainer_type, base_dir"),
    },
    "ratchet.rollouts": {
        "Batch": "values, metadata",
        "Trajectory": None,
        "compute_position_id_with_mask": "mask",
        "padding_data": "batch, *, pad_token_id, max_length, left_pad, truncation",
    },
    "ratchet.algorithms.language.metrics": {
        "log_rollout_metrics": "trajectories, metrics",
        "log_grpo_metrics": "trajectories, metrics, *, use_run_ids",
    },
    "ratchet.algorithms.language.trajectories": {
        "compute_grpo_advantage_for_trajectories": (
            "trajectories, *, use_run_ids, baseline, scale, logger"
        ),
    },
    "trainers": {
        "BaseTrainer": "config",
        "SelfHostedTrainer": "config",
        "Trainer": "hyper_params, scenario_instance, settings",
        "TensorDictTrainer": "hyper_params, scenario_instance, settings",
        "TensorDictRlTrainer": "hyper_params, scenario_instance, settings",
        "PureTextRlTrainer": "hyper_params, scenario_instance, settings",
        "TorchRlTrainer": "hyper_params, scenario_instance, settings",
        "register_trainer": "name",
        "TrainerTraits": None,
        "register_callback": "name",
        "Callback": "parameters, trainer",
        "CallbackState": "values, tensors",
        "Moment": "iteration, stage, metrics, dataset, rollouts",
        "attach_progress_bar": "num_iterations",
        "IterationContext": "total, reporter",
        "Objective": "actor, critic",
        "CheckPointNotFoundError": None,
    },
    "flows": {
        "run_experiment": "hyper_params, settings, *, arms, name, force",
        "resume_experiment": "run, settings, *, runs",
        "fork_experiment": "run, from_stage, changes, settings",
        "retest_experiment": "run, changes, settings",
        "verify_run": "run, settings, *, stage, remake",
        "run_without_prefect": "hyper_params, settings, *, arms, name",
        "plan_experiment": "hyper_params, settings, *, arms, keep",
        "experiment": "hyper_params, settings, arms, name, keep, force",
        "run_sweep": "hyper_params, grid, settings, *, arms, name, parallel, sweep_name",
        "sweep": "hyper_params, grid, settings, arms, name, parallel, sweep_name",
        "ExperimentResult": None,
    },
}
METHODS = {
    "trainers:SelfHostedTrainer": [
        *("train", "_prepare_batch", "_compute_loss", "_learning_parameters", "connect"),
        *("_reward_fn", "_compute_old_log_probs", "_compute_ref_log_probs", "_apply_kl_penalty"),
        *("_log_rollout_metrics", "_pad_token_id", "model", "required_fields", "rows_together"),
        *("take_state", "put_state", "keeps_group", "max_resamples"),
    ],
    "trainers:Trainer": ["train", "agent_names", "num_agents", "protocol_handler", "State"],
    "trainers:TensorDictTrainer": [
        "train",
        "_build_train_context",
        "_build_test_context",
        "trainer_type",
    ],
    "trainers:TensorDictRlTrainer": [
        *(
            "build_loss",
            "_get_loss_module_and_gae",
            "run_iterations",
            "run_test",
            "sample_rollouts",
        ),
        *("PRETRAINED_MODEL_CACHE_PARAM_KEYS", "_add_file_to_wandb_artifact"),
        *("_load_state_dict_from_active_run_checkpoint", "get_total_num_iterations"),
        *("_load_state_dict_from_base_run_checkpoint", "save_checkpoint", "_get_metadata"),
        *("get_checkpoint_base_dir_from_run_id", "load_and_set_state_from_checkpoint"),
        *("checkpoint_base_dir", "checkpoint_metadata_path", "checkpoint_params_path"),
        *("checkpoint_state_path", "_get_log_stats", "_train_on_replay_buffer"),
        *("_run_train_loop", "_run_test_loop", "_pretrain_agents", "_get_replay_buffer"),
        *("_get_data_collectors", "_get_optimizer_and_param_freezer", "policy_operator"),
        *("_add_normalization_transforms", "value_operator", "max_message_rounds"),
    ],
    "trainers:Callback": [
        *("begin_run", "begin_iteration", "after_rollouts", "after_loss", "end_iteration"),
        *("end_run", "begin_stage", "end_stage", "take_state", "load_state", "stop"),
        *("add_artifact", "check", "Parameters", "stages", "steers", "plays_text"),
    ],
    "trainers:PureTextRlTrainer": [
        "_sample_rollouts",
        "_get_log_stats",
        "_stage_create_fine_tune_jobs",
        "train",
        "state",
        "State",
        "shared_model_groups",
        "learning_model_groups",
    ],
    "trainers:IterationContext": ["set_description", "step", "set_postfix"],
    "ratchet:HyperParameters": ["to_dict", "from_dict", "replace", "trainer_name"],
    "ratchet:ExperimentSettings": ["to_dict", "from_dict"],
}
ALL = [(module, name) for module, names in NAMES.items() for name in names]


def described(function: object) -> str:
    """Return a signature's parameter names, with ``*`` before keyword-only ones."""
    signature = inspect.signature(getattr(function, "fn", function))  # the function of a flow
    words, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        words.append(parameter.name)
    return ", ".join(words)


@pytest.mark.parametrize(("module", "name"), ALL)
def test_a_public_name_exists_with_its_signature(module: str, name: str) -> None:
    found = getattr(importlib.import_module(module), name)
    expected = NAMES[module][name]
    if expected is not None:
        assert described(found) == expected


@pytest.mark.parametrize("place", METHODS)
def test_members_that_users_override_or_call_exist(place: str) -> None:
    module, _, name = place.partition(":")
    found = getattr(importlib.import_module(module), name)
    annotated = {key for base in found.__mro__ for key in getattr(base, "__annotations__", {})}
    missing = [word for word in METHODS[place] if not hasattr(found, word)]
    assert [word for word in missing if word not in annotated] == []


@pytest.mark.parametrize("module", ["ratchet", "trainers", "flows", "ratchet.protocols"])
def test_all_lists_exactly_the_importable_names(module: str) -> None:
    package = importlib.import_module(module)
    for name in package.__all__:
        assert getattr(package, name) is not None


@pytest.mark.parametrize("module", ["ratchet", "trainers", "flows", "ratchet.protocols"])
def test_dir_shows_the_public_names_without_importing_them(module: str) -> None:
    code = (
        f"import sys, {module} as package\n"
        "assert package.__all__ == dir(package)\n"
        "assert not {'torch', 'prefect'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
