"""The defaults that users know, copied from the description: a change of one is a decision."""

from __future__ import annotations

import pytest

from ratchet.errors import ParameterError
from ratchet.parameters import ExperimentSettings, HyperParameters

UNIT = {"actor": 1.0, "critic": 1.0}
TOP = {
    "interaction_protocol": "nip",
    "seed": 6198,
    "pretrain_agents": False,
    "test_size": 0.2,
    "d_representation": 16,
    "message_size": 1,
    "include_linear_message_space": False,
    "d_linear_message_space": 2,
}
SECTIONS = {
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
        "adam_eps": 1e-5,
        "loss_critic_type": "smooth_l1",
        "clip_value": False,
        "normalize_observations": True,
        "num_normalization_steps": 1000,
        "gamma": 0.9,
        "lmbda": 0.95,
        "body_lr_factor": UNIT,
        "use_shared_body": True,
        "num_test_iterations": 10,
        "test_by_sampling": False,
        "mixed_precision": False,
        "compile_losses": False,
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
    },
    "imitation": {
        "agents": [],
        "source": "hand_made",
        "num_iterations": 100,
        "num_epochs": 1,
        "minibatch_size": 64,
        "lr": 0.002,
        "anneal_lr": True,
    },
    "reinforce": {"use_advantage_and_critic": False},
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
    },
    "solo_agent": {
        "num_epochs": 100,
        "batch_size": 256,
        "learning_rate": 0.001,
        "body_lr_factor_override": False,
    },
    "nip_protocol": {"max_message_rounds": 8, "min_message_rounds": 1},
    "dataset_options": {
        "binarification_method": "merge",
        "selected_classes": None,
        "binarification_seed": None,
        "make_balanced": True,
        "max_train_size": None,
    },
    "message_regression": {
        "enabled": False,
        "agents": "all",
        "method": "mlp",
        "test_size": 0.2,
        "reset_on_fit": True,
        "num_layers": 2,
        "hidden_size": 64,
        "activation": "relu",
        "num_epochs": 10,
        "batch_size": 512,
        "learning_rate": 1e-3,
    },
    "base_run": {"base_run_type": "none", "run_id": None},
}
AGENT = {
    "is_random": False,
    "agent_lr_factor": UNIT,
    "body_lr_factor": UNIT,
    "update_schedule": {"kind": "constant"},
    "use_manual_architecture": False,
    "load_checkpoint_and_parameters": False,
    "checkpoint_run_id": None,
    "checkpoint_version": "latest",
    "use_orthogonal_initialisation": True,
    "orthogonal_initialisation_gain": 1.0,
    "network": None,
    "activation_function": "tanh",
    "num_gnn_layers": 5,
    "d_gnn": 16,
    "d_gin_mlp": 64,
    "gnn_output_digits": None,
    "use_dual_gnn": True,
    "tie_exchanges": False,
    "num_heads": 4,
    "num_transformer_layers": 4,
    "d_transformer": 16,
    "d_transformer_mlp": 64,
    "transformer_dropout": 0.0,
    "d_node_selector": 16,
    "num_node_selector_layers": 2,
    "d_decider": 16,
    "num_decider_layers": 2,
    "include_round_in_decider": True,
    "d_linear_message_selector": 16,
    "num_linear_message_selector_layers": 2,
    "d_value": 16,
    "num_value_layers": 2,
    "include_round_in_value": True,
    "use_batch_norm": True,
    "noise_sigma": 0.0,
    "use_pair_invariant_pooling": True,
    "gnn_lr_factor": UNIT,
}
SETTINGS = {
    "iterations_per_task": 10,
    "num_rollout_workers": 4,
    "num_threads": 1,
    "pretrained_embeddings_batch_size": 256,
    "poll_seconds": 5.0,
    "poll_seconds_max": 60.0,
    "job_listing_seconds": 120.0,
    "job_stall_seconds": 600.0,
    "lease_seconds": 60.0,
    "system_metrics_seconds": 10.0,
    "retries": 3,
}


@pytest.fixture(scope="module")
def plain() -> dict[str, object]:
    return HyperParameters(
        scenario="graph_isomorphism", trainer="vanilla_ppo", dataset="er1000"
    ).to_dict()


def test_top_level(plain: dict[str, object]) -> None:
    assert {name: plain[name] for name in TOP} == TOP


@pytest.mark.parametrize("section", SECTIONS)
def test_section(plain: dict[str, object], section: str) -> None:
    assert plain[section] == SECTIONS[section]


def test_agents(plain: dict[str, object]) -> None:
    assert plain["agents"] == {"_default": AGENT}


def test_settings() -> None:
    settings = ExperimentSettings().to_dict()
    assert {name: settings[name] for name in SETTINGS} == SETTINGS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("run_id", name) for name in ("..", ".", "-x", "a b", "x" * 256)),
        *(("tracking_uri", uri) for uri in ("debaters.py:", "/proc/self/mem", "localhost:5000")),
    ],
)
def test_settings_that_a_run_would_refuse_are_refused_when_they_are_read(name, value):
    with pytest.raises(ParameterError, match=f"settings.{name}: got .*expected"):
        ExperimentSettings.from_dict({name: value})


@pytest.mark.parametrize("uri", ["http://a:1", "sqlite:///x.db", "postgresql+psycopg2://h/d"])
def test_uris_of_mlflow_are_accepted(uri):
    assert ExperimentSettings.from_dict({"tracking_uri": uri}).tracking_uri == uri
