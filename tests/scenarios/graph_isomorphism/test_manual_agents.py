"""Scripted agents: their accuracy, and the parameters that they refuse."""

from __future__ import annotations

import pytest
import torch

from ratchet.errors import ParameterError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.graph_isomorphism.dataset import build_graph_datasets
from ratchet.scenarios.graph_isomorphism.scenario import (
    GraphAgentBuilder,
    GraphIsomorphismEnvironment,
)

MANUAL = {"use_manual_architecture": True}
BUILDER = GraphAgentBuilder()


def parameters(**changes):
    given = {"agents": {"_default": MANUAL}, "test_size": 0.5, **changes}
    return HyperParameters(
        scenario="graph_isomorphism", trainer="vanilla_ppo", dataset="er200", **given
    )


def play(hyper_params, dataset):
    """Play one episode with each datapoint; give y and the decision (2 for none)."""
    handler = build_protocol_handler(hyper_params)
    environment = GraphIsomorphismEnvironment(hyper_params, dataset, handler, train=True)
    agents = BUILDER.combine_agents(
        hyper_params, handler, BUILDER.build_agents(hyper_params, handler)
    )
    agents.bind(environment)
    ids = torch.arange(len(dataset))
    td, final = environment.reset(ids, ids), torch.full((len(ids),), 2)
    verifier = agents.agent_names.index("verifier")
    for _ in range(handler.max_message_rounds):
        td = agents.act(td)
        going_on = ~td["done"]
        final[going_on] = td["agents", "decision"][going_on, verifier]
        td = environment.step(td)
    return dataset["y"], final


@pytest.fixture(scope="module")
def dataset():
    return build_graph_datasets(parameters())["train"]


@pytest.mark.parametrize("verifier_first", [True, False])
def test_hand_made_agents_tell_all_pairs_apart(dataset, verifier_first):
    y, decision = play(parameters(protocol_common={"verifier_first": verifier_first}), dataset)
    assert (decision == y).float().mean() >= 0.99


def test_a_strong_prover_helps_a_verifier_of_one_refinement_round(dataset):
    weak = {"_default": MANUAL, "verifier": {**MANUAL, "num_gnn_layers": 1}}
    y, decision = play(parameters(agents=weak), dataset)
    alone = parameters(agents=weak, nip_protocol={"max_message_rounds": 1})
    y_alone, decision_alone = play(alone, dataset)
    correct, correct_alone = (decision == y).float().mean(), (decision_alone == y_alone)
    assert (decision_alone != 2).all()
    assert correct > correct_alone.float().mean() + 0.05


def test_a_random_prover_does_not_persuade_the_hand_made_verifier(dataset):
    agents = {"_default": MANUAL, "prover": {"use_manual_architecture": False, "is_random": True}}
    y, decision = play(parameters(agents=agents), dataset)
    assert (decision[y == 0] == 0).float().mean() > 0.99


def test_hand_made_agents_have_no_parameters():
    hyper_params = parameters()
    handler = build_protocol_handler(hyper_params)
    agents = BUILDER.combine_agents(
        hyper_params, handler, BUILDER.build_agents(hyper_params, handler)
    )
    assert list(agents.parameters()) == []
    assert agents.parameter_groups(hyper_params.rl) == []


@pytest.mark.parametrize(
    "changes", [{"interaction_protocol": "adp"}, {"message_size": 2}], ids=["adp", "two positions"]
)
def test_other_games_are_refused(changes):
    hyper_params = parameters(**changes)
    with pytest.raises(ParameterError, match="use_manual_architecture"):
        BUILDER.build_agents(hyper_params, build_protocol_handler(hyper_params))
