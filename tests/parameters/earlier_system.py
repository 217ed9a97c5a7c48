"""Parameters as nip writes them: every section, every default.

Its ``to_dict()`` writes the name of the class with the values of each section, all sections for
every scenario, and adds a description of the agents' schedules.
"""

from __future__ import annotations

import json
from typing import Any

_FACTORS = {"actor": 1.0, "critic": 1.0, "_type": "LrFactors"}
_AGENT = {
    "agent_lr_factor": _FACTORS,
    "body_lr_factor": _FACTORS,
    "update_schedule": {"_type": "ConstantUpdateSchedule"},
    "use_manual_architecture": False,
    "normalize_message_history": False,
    "load_checkpoint_and_parameters": False,
    "checkpoint_entity": "",
    "checkpoint_project": "",
    "checkpoint_run_id": None,
    "checkpoint_version": "latest",
    "use_orthogonal_initialisation": True,
    "orthogonal_initialisation_gain": 1.0,
    "is_random": False,
}
_HEADS = {
    "activation_function": "tanh",
    "d_decider": 16,
    "num_decider_layers": 2,
    "include_round_in_decider": True,
    "d_linear_message_selector": 16,
    "num_linear_message_selector_layers": 2,
    "d_value": 16,
    "num_value_layers": 2,
    "include_round_in_value": True,
}
AGENTS: dict[str, dict[str, Any]] = {
    "random": {**_AGENT, "is_random": True, "_type": "RandomAgentParameters"},
    "graph_isomorphism": {
        **_AGENT,
        **_HEADS,
        "num_gnn_layers": 5,
        "d_gnn": 16,
        "d_gin_mlp": 64,
        "gnn_output_digits": None,
        "use_dual_gnn": True,
        "num_heads": 4,
        "num_transformer_layers": 4,
        "d_transformer": 16,
        "d_transformer_mlp": 64,
        "transformer_dropout": 0.0,
        "d_node_selector": 16,
        "num_node_selector_layers": 2,
        "use_batch_norm": True,
        "noise_sigma": 0.0,
        "use_pair_invariant_pooling": True,
        "gnn_lr_factor": _FACTORS,
        "_type": "GraphIsomorphismAgentParameters",
    },
    "image_classification": {
        **_AGENT,
        **_HEADS,
        "building_block_type": "conv2d",
        "num_blocks_per_group": 2,
        "kernel_size": 3,
        "stride": 1,
        "pretrained_embeddings_model": None,
        "pretrained_embedding_channels": 64,
        "d_latent_pixel_selector": 16,
        "num_latent_pixel_selector_layers": 2,
        "_type": "ImageClassificationAgentParameters",
    },
    "code_validation": {
        **_AGENT,
        "model_provider": "OpenAI",
        "model_name": "gpt-4o-mini-2024-07-18",
        "language_model_server_scheme_host": "http://localhost",
        "language_model_server_port": 5000,
        "vllm_server_port": 8000,
        "use_dummy_api": False,
        "shared_model_group": None,
        "temperature": None,
        "top_p": None,
        "repetition_penalty": None,
        "fine_tune_from_scratch": True,
        "freeze_agent": False,
        "dpo_beta": None,
        "system_prompt_template_path": None,
        "use_supervisor_message": "none",
        "supervisor_name": "Supervisor",
        "max_response_words": 150,
        "max_tokens_per_message": None,
        "num_invalid_generation_retries": 20,
        "_type": "CodeValidationAgentParameters",
    },
}
_LONG = {"max_message_rounds": 8, "min_message_rounds": 1}
_TWO_PROVERS = {
    **_LONG,
    "sequential": False,
    "prover0_first": True,
    "randomize_channel_order": True,
}
SECTIONS: dict[str, dict[str, Any]] = {
    "rl": {
        "frames_per_batch": 1000,
        "rollouts_per_iteration": None,
        "steps_per_env_per_iteration": None,
        "num_iterations": 1000,
        "num_epochs": 4,
        "minibatch_size": 64,
        "lr": 0.003,
        "anneal_lr": False,
        "max_grad_norm": 1.0,
        "loss_critic_type": "smooth_l1",
        "clip_value": False,
        "normalize_observations": True,
        "num_normalization_steps": 1000,
        "gamma": 0.9,
        "lmbda": 0.95,
        "body_lr_factor": _FACTORS,
        "use_shared_body": True,
        "num_test_iterations": 10,
        "_type": "RlTrainerParameters",
    },
    "ppo": {
        "loss_type": "clip",
        "clip_epsilon": 0.2,
        "kl_target": 0.01,
        "kl_beta": 1.0,
        "kl_decrement": 0.5,
        "kl_increment": 2.0,
        "critic_coef": 1.0,
        "entropy_eps": 0.001,
        "normalize_advantage": True,
        "_type": "CommonPpoParameters",
    },
    "vanilla_ppo": {"_type": "VanillaPpoParameters"},
    "spg": {
        "variant": "psos",
        "stackelberg_sequence": None,
        "additional_lola_term": True,
        "sos_scaling_factor": 0.5,
        "sos_threshold_factor": 0.1,
        "ihvp_variant": "nystrom",
        "ihvp_num_iterations": 5,
        "ihvp_rank": 5,
        "ihvp_rho": 0.1,
        "_type": "SpgParameters",
    },
    "reinforce": {"use_advantage_and_critic": False, "_type": "ReinforceParameters"},
    "solo_agent": {
        "num_epochs": 100,
        "batch_size": 256,
        "learning_rate": 0.001,
        "body_lr_factor_override": False,
        "_type": "SoloAgentParameters",
    },
    "text_rl": {
        "fine_tune_on_all_previous_rollouts": False,
        "verifier_guess_replacement_proportion": 0.0,
        "verifier_guess_replacement_annealing": "none",
        "verifier_guess_replacement_annealing_rate": 0.1,
        "save_transcripts": True,
        "transcript_format": "yaml",
        "test_scheme": "none",
        "test_on_whole_dataset": True,
        "_type": "TextRlParameters",
    },
    "pure_text_ei": {
        "rollout_selection_method": "threshold",
        "reward_threshold": 0.9,
        "weighting_sample_size_factor": 0.5,
        "weighting_minimum": None,
        "weighting_use_replacement": True,
        "weighting_epsilon": 0.01,
        "_type": "PureTextEiParameters",
    },
    "pure_text_malt": {"num_responses_per_timestep": 2, "_type": "PureTextMaltParameters"},
    "image_classification": {
        "num_block_groups": 1,
        "initial_num_channels": 16,
        "_type": "ImageClassificationParameters",
    },
    "code_validation": {
        "apps_difficulty": "interview",
        "apps_solution_number": 0,
        "apps_exclude_flagged": True,
        "system_prompt_version": "v2",
        "_type": "CodeValidationParameters",
    },
    "dataset_options": {
        "binarification_method": "merge",
        "selected_classes": None,
        "binarification_seed": None,
        "make_balanced": True,
        "max_train_size": None,
        "max_test_size": None,
        "_type": "DatasetParameters",
    },
    "protocol_common": {
        "verifier_first": True,
        "randomize_prover_stance": False,
        "prover_reward": 1.0,
        "prover_invalid_response_penalty": None,
        "verifier_reward": 1.0,
        "verifier_incorrect_penalty": -1.0,
        "verifier_neither_accept_nor_reject_reward": None,
        "verifier_terminated_penalty": -1.0,
        "verifier_no_guess_reward": 0.0,
        "shared_reward": False,
        "force_guess": None,
        "zero_knowledge": False,
        "verifier_decision_spectrum": "accept_reject",
        "_type": "CommonProtocolParameters",
    },
    "nip_protocol": {**_LONG, "_type": "NipProtocolParameters"},
    "debate_protocol": {**_TWO_PROVERS, "_type": "DebateProtocolParameters"},
    "mnip_protocol": {**_TWO_PROVERS, "_type": "MnipProtocolParameters"},
    "zk_protocol": {
        "simulator_reward_coefficient": 1.0,
        "aux_prover_reward_coefficient": 1.0,
        "_type": "ZkProtocolParameters",
    },
    "message_regression": {
        "enabled": False,
        "agents": None,
        "regression_method": "mlp",
        "test_size": 0.2,
        "reset_on_fit": True,
        "mlp_num_layers": 2,
        "mlp_hidden_size": 64,
        "mlp_activation": "relu",
        "mlp_num_epochs": 10,
        "mlp_batch_size": 512,
        "mlp_learning_rate": 0.001,
        "_type": "MessageRegressionParameters",
    },
    "base_run": {
        "base_run_type": "none",
        "run_id": None,
        "wandb_project": "",
        "wandb_entity": "",
        "rerun_tests_force_test_during_training_state": True,
        "_type": "BaseRunParameters",
    },
}
_NETWORK_TRAINERS = ("vanilla_ppo", "spg", "reinforce", "solo_agent")
DATASETS = {
    "graph_isomorphism": "eru10000",
    "image_classification": "cifar10",
    "code_validation": "lrhammond/buggy-apps",
}
COMBINATIONS = [
    *[("graph_isomorphism", trainer) for trainer in _NETWORK_TRAINERS],
    *[("image_classification", trainer) for trainer in _NETWORK_TRAINERS],
    ("code_validation", "pure_text_ei"),
    ("code_validation", "pure_text_malt"),
]
"""All scenarios, each with all compatible trainers."""


def written(scenario: str, trainer: str) -> dict[str, Any]:
    """Return nip's parameters of an experiment with its defaults."""
    plain = {
        "scenario": scenario,
        "trainer": trainer,
        "dataset": DATASETS[scenario],
        "interaction_protocol": "nip",
        "seed": 6198,
        "functionalize_modules": False,
        "pretrain_agents": False,
        "test_dataset_split": "test",
        "d_representation": 16,
        "message_size": 1,
        "include_linear_message_space": False,
        "d_linear_message_space": 2,
        "agents": {"_default": AGENTS[scenario], "agents_update_repr": "Standard"},
        **SECTIONS,
        "_type": "HyperParameters",
        "_package_version": "1.0.0",
        "_package_name": "nip",
    }
    written: dict[str, Any] = json.loads(json.dumps(plain))  # without shared objects
    return written


def changed(data: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Set a value by its dotted path, in place."""
    *parents, last = path.split(".")
    section = data
    for parent in parents:
        section = section[parent]
    section[last] = value
    return data
