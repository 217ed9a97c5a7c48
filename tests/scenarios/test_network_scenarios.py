"""Scenarios of networks run under every protocol, and their options take effect."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import ParameterError
from ratchet.parameters.hyper_parameters import set_path
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.registry import build_scenario
from trainers.registry import build_trainer, trainer_class

BASE: dict[str, Any] = {
    "trainer": "vanilla_ppo",
    "d_representation": 4,
    "nip_protocol": {"max_message_rounds": 4},
    "rl": {
        "frames_per_batch": 32,
        "minibatch_size": 16,
        "num_iterations": 1,
        "num_epochs": 1,
        "num_normalization_steps": 16,
        "num_test_iterations": 1,
    },
    "solo_agent": {"num_epochs": 2, "batch_size": 32},
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "image_classification": {
        "dataset": "digits",
        "dataset_options": {"max_train_size": 24},
        "test_size": 0.01,
        "image_classification": {"initial_num_channels": 2, "num_block_groups": 2},
        "agents": {"_default": {"num_blocks_per_group": 1}},
    },
    "binary_erasure_channel": {
        "dataset": "generated",
        "binary_erasure_channel": {"num_datapoints": 40},
    },
}
PROTOCOLS = (
    "nip",
    "adp",
    "debate",
    "merlin_arthur",
    "mnip",
    "solo_verifier",
    "multi_channel_test",
)


def parameters(scenario: str, **changes: Any) -> HyperParameters:
    plain = HyperParameters(scenario=scenario, **BASE, **SCENARIOS[scenario]).to_dict()
    for path, value in changes.items():
        set_path(plain, path.replace("__", "."), value)
    return HyperParameters.from_dict(plain)


@cache
def datasets_of(scenario: str) -> Any:
    return build_scenario(scenario).build_datasets(parameters(scenario))


@pytest.fixture(params=SCENARIOS)
def make(request):
    """Make the trainer of a tiny experiment; all have the same data."""

    def make_trainer(**changes: Any) -> Any:
        hyper_params, settings = parameters(request.param, **changes), ExperimentSettings()
        instance = build_scenario_instance(
            hyper_params,
            settings,
            datasets=datasets_of(request.param),
            trainer_type=trainer_class(hyper_params).trainer_type,
        )
        return build_trainer(hyper_params, instance, settings)

    return make_trainer


def rollouts_of(trainer):
    trainer.initial_state()
    return trainer.components.collector.collect(0)


@pytest.mark.parametrize(
    ("protocol", "zero_knowledge"),
    [*((protocol, False) for protocol in PROTOCOLS), ("nip", True), ("mnip", True)],
)
def test_every_protocol_is_played_and_learned_from(make, protocol, zero_knowledge):
    trainer = make(interaction_protocol=protocol, protocol_common__zero_knowledge=zero_knowledge)
    before = trainer.initial_state()
    trainer.train()
    assert trainer.test_results["test"].metrics["num_datapoints"] > 0
    after = trainer.state
    for name in trainer.agent_names:
        changed = [
            not torch.equal(tensor, after.agents[name][key])
            for key, tensor in before.agents[name].items()
        ]
        assert any(changed), name


def test_bodies_are_pretrained_and_agents_trained_alone(make):
    alone = make(trainer="solo_agent", interaction_protocol="adp")
    alone.train()
    assert alone.solo_agents == ["prover", "verifier"]
    trainer = make(pretrain_agents=True, interaction_protocol="adp")
    trainer.train()
    assert trainer.pretrained_agent_names(trainer.hyper_params) == ["prover", "verifier"]


OPTIONS: dict[str, dict[str, Any]] = {
    "linear messages": {"include_linear_message_space": True, "d_linear_message_space": 3},
    "separate bodies": {"rl__use_shared_body": False},
    "noise": {"agents___default__noise_sigma": 0.3},
    "batch norm": {"agents___default__use_batch_norm": True},
    "no rounds": {
        "agents___default__include_round_in_decider": False,
        "agents___default__include_round_in_value": False,
    },
    "uniform weights": {"agents___default__use_orthogonal_initialisation": False},
    "long messages": {"message_size": 2},
    "a random prover": {"agents__prover__is_random": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_reach_every_parameter_with(make, name):
    trainer = make(interaction_protocol="nip", **OPTIONS[name])
    rollouts = rollouts_of(trainer)
    agents = trainer.combined_agents
    out = agents.evaluate(rollouts.reshape(-1))["agents"]
    (out["log_prob"].sum() + out["entropy"].sum() + (out["value"] ** 2).sum()).backward()
    parameters = dict(agents.named_parameters())
    assert parameters
    for key, parameter in parameters.items():
        assert parameter.grad is not None, key
    silent = [key for key, parameter in parameters.items() if not parameter.grad.any()]
    assert silent == []


@pytest.mark.parametrize("name", ["linear messages", "separate bodies", "noise", "batch norm"])
def test_training_runs_and_resumes_bit_for_bit_with(make, name):
    changes = {"interaction_protocol": "nip", **OPTIONS[name]}
    whole = make(**changes)
    whole.initial_state()
    metrics = whole.run_iterations(0, 2)
    first = make(**changes)
    first.initial_state()
    half = first.run_iterations(0, 1)
    second = make(**changes)
    second.state = first.state
    assert half + second.run_iterations(1, 2) == metrics
    assert second.state == whole.state


def values_and_logits(trainer, frames):
    out = trainer.combined_agents.evaluate(frames, with_logits=True)["agents"]
    return out["value"].detach(), out["decision_logits"].detach()


@pytest.mark.parametrize("included", [True, False])
def test_rounds_are_in_heads_only_where_asked_for(make, included):
    trainer = make(
        interaction_protocol="nip",
        agents___default__include_round_in_decider=included,
        agents___default__include_round_in_value=included,
    )
    frames = rollouts_of(trainer)[:, 0].clone()  # the verifier's turn
    before = values_and_logits(trainer, frames)
    frames["round"] = frames["round"] + 2
    after = values_and_logits(trainer, frames)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other) != included


def test_noise_is_the_generators_and_in_training_only(make):
    trainer = make(interaction_protocol="adp", agents___default__noise_sigma=0.3)
    frames = rollouts_of(trainer)[:, 0]
    agents = trainer.combined_agents

    def values(seed):
        generators = {name: torch.Generator().manual_seed(seed) for name in agents.agent_names}
        return agents.values(frames, generators=generators).detach()

    assert torch.equal(values(1), values(1))
    assert not torch.equal(values(1), values(2))
    agents.eval()
    assert torch.equal(values(1), values(2))


@pytest.mark.parametrize("normalised", [True, False])
def test_batch_norm_compares_the_rows_of_a_batch(make, normalised):
    trainer = make(
        interaction_protocol="solo_verifier", agents___default__use_batch_norm=normalised
    )
    frames = rollouts_of(trainer)[:, 0]
    agents = trainer.combined_agents
    together, half = agents.values(frames), agents.values(frames[:8])
    assert torch.allclose(together[:8], half) != normalised
    assert agents.values(frames[:1]).isfinite().all()


@pytest.mark.parametrize("protocol", ["nip", "debate"])
def test_padding_changes_no_score_and_no_gradient(make, protocol):
    trainer = make(interaction_protocol=protocol, agents___default__use_batch_norm=True)
    frames, agents = rollouts_of(trainer).reshape(-1), trainer.combined_agents
    params = list(agents.parameters())

    def scores_and_gradients():
        scores = torch.stack(agents.score_remembered(frames))
        return scores, *torch.autograd.grad(scores.square().sum(), params, allow_unused=True)

    expected = scores_and_gradients()
    frames["turns"] = agents.padded_turns(frames)
    for one, other in zip(scores_and_gradients(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_weights_are_orthogonal_or_uniform(make):
    for orthogonal in (True, False):
        trainer = make(agents___default__use_orthogonal_initialisation=orthogonal)
        for name, tensor in trainer.initial_state().agents["verifier"].items():
            if not name.endswith("weight"):
                continue
            rows = tensor.flatten(1)
            rows = rows if len(rows) <= rows.shape[1] else rows.T
            product = rows @ rows.T
            is_orthogonal = torch.allclose(product, torch.eye(len(product)), atol=1e-4)
            assert is_orthogonal == orthogonal, name


def test_linear_messages_are_said_and_count_in_log_probabilities(make):
    trainer = make(
        interaction_protocol="adp",
        include_linear_message_space=True,
        d_linear_message_space=3,
        rl__frames_per_batch=128,
    )
    rollouts = rollouts_of(trainer)
    said = rollouts["agents", "linear_message"]
    assert set(said[:, 0, 0].tolist()) == {0, 1, 2}
    heard = rollouts["linear_message_history"][:, 1, 0, 0]
    assert torch.equal(heard.argmax(-1), said[:, 0, 0])
    frames = rollouts[:, 0].clone()
    before = trainer.combined_agents.evaluate(frames)["agents", "log_prob"]
    frames["agents", "linear_message"] = (frames["agents", "linear_message"] + 1) % 3
    after = trainer.combined_agents.evaluate(frames)["agents", "log_prob"]
    assert not torch.equal(before[:, 0], after[:, 0])


def test_random_agents_have_no_parameters_and_value_0(make):
    trainer = make(interaction_protocol="adp", agents__prover__is_random=True)
    rollouts = rollouts_of(trainer)
    assert not trainer.state.agents["prover"]
    assert not rollouts["agents", "value"][:, :, 0].any()
    said = rollouts["agents", "message"][:, 0, 0].flatten()
    assert len(said.unique()) > 1


def test_hand_made_agents_are_refused(make):
    with pytest.raises(ParameterError, match="has no scripted agents"):
        make(agents__prover__use_manual_architecture=True)
