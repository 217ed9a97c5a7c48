"""A question and the right answer to it leave equal marks where exchanges are tied."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from ratchet.agents.actor_critic import INDEX
from ratchet.agents.parts import AgentInput
from ratchet.fast.dispatch import only_plain_operations
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.graph_isomorphism.body import GraphPerception, exchange_lengths, tie_rounds
from ratchet.scenarios.graph_isomorphism.scenario import (
    GraphAgentBuilder,
    GraphIsomorphismEnvironment,
)

NODES = 8
ROUNDS = {"max_message_rounds": 6}
SMALL = {"num_gnn_layers": 2, "num_transformer_layers": 1, "use_batch_norm": False}


def make(protocol="nip", tied=True, **changes):
    agent = {**SMALL, "tie_exchanges": tied, **changes.pop("agent", {})}
    given = {"interaction_protocol": protocol, f"{protocol}_protocol": ROUNDS, **changes}
    if protocol in ("adp", "merlin_arthur", "solo_verifier"):
        del given[f"{protocol}_protocol"]
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="generated",
        agents={"_default": agent},
        **given,
    )
    return hyper_params, build_protocol_handler(hyper_params)


@pytest.mark.parametrize(
    ("protocol", "changes", "lengths"),
    [
        ("nip", {}, (2, 2, 2)),
        ("nip", {"protocol_common": {"verifier_first": False}}, (1, 2, 2, 1)),
        ("nip", {"nip_protocol": {"max_message_rounds": 3}}, (2, 1)),
        ("nip", {"protocol_common": {"zero_knowledge": True}}, (2, 2, 2)),
        ("debate", {}, (2, 2, 2)),
        ("debate", {"protocol_common": {"verifier_first": False}}, (1, 2, 2, 1)),
        ("debate", {"debate_protocol": {**ROUNDS, "sequential": True}}, (3, 3)),
        ("mnip", {"mnip_protocol": {**ROUNDS, "sequential": True}}, (3, 3)),
        (
            "mnip",
            {
                "mnip_protocol": {**ROUNDS, "sequential": True},
                "protocol_common": {"verifier_first": False},
            },
            (2, 3, 1),
        ),
        ("adp", {}, (1, 1)),
        ("merlin_arthur", {}, (1, 1)),
        ("solo_verifier", {}, (1,)),
    ],
)
def test_an_exchange_is_a_question_and_the_answers_before_the_next(protocol, changes, lengths):
    assert exchange_lengths(make(protocol, **changes)[1]) == lengths


def test_channels_and_exchanges_stay_apart():
    history = torch.zeros(1, 4, 2, 1, 3)
    history[0, 0, 0, 0, 0] = history[0, 1, 0, 0, 1] = history[0, 3, 1, 0, 2] = 1
    tied = tie_rounds(history, (2, 2))
    assert tied.nonzero().tolist() == [[0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 1, 1, 0, 2]]


def graphs(size, seed=0):
    """Make pairs of the same graph under another labelling; node i of the first is order[i]'s."""
    generator = torch.Generator().manual_seed(seed)
    upper = (torch.rand(size, NODES, NODES, generator=generator) < 0.5).triu(1)
    first = (upper | upper.mT).float()
    order = torch.randperm(NODES, generator=generator)
    return torch.stack([first, first[:, order][:, :, order]], 1), order.argsort()


def pooled(body, adjacency, said):
    """Return the pooled representations of the two graphs, [b, 2, D], for (node, node) pairs.

    Node numbers are symbols; the second of a pair answers the first.
    """
    b = len(adjacency)
    history = torch.full((b, 6, 1, 1, 2 * NODES), -0.3)  # as if normalised
    for place, named in enumerate(node for pair in said for node in pair):
        history[:, place, 0, 0, named] = 2.1
    fields = {"adjacency": adjacency, "node_mask": torch.ones(b, 2, NODES, dtype=torch.bool)}
    data = GraphPerception().prepare(TensorDict(fields, [b]))
    nodes = body._run_gnn(AgentInput(torch.zeros(b), history, history[:, 0], data))
    return body._pool(nodes, data["node_weight"], None)


def verifier_body(**changes):
    hyper_params, handler = make(
        agent={"use_pair_invariant_pooling": False, **changes.pop("agent", {})}, **changes
    )
    return GraphAgentBuilder().build_agents(hyper_params, handler)["verifier"].body


def questions(places):
    """Send every node of the first graph, with correct answers, after a first correct exchange."""
    for node in range(NODES):
        asked, answered = node, NODES + int(places[node])
        yield [(asked, answered)]
        yield [(answered, asked)]
        yield [(0, NODES + int(places[0])), (asked, answered)]


def test_the_graphs_of_an_isomorphic_pair_look_equal_after_any_right_answer():
    adjacency, places = graphs(5)
    tied, untied = verifier_body(), verifier_body(tied=False)
    for said in questions(places):
        first, second = pooled(tied, adjacency, said).unbind(1)
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)
        first, second = pooled(untied, adjacency, said).unbind(1)
        assert (first - second).abs().amax() > 1e-2


def test_where_nodes_are_in_the_same_order_they_look_equal_bit_for_bit():
    adjacency = graphs(5)[0][:, :1].repeat(1, 2, 1, 1)
    body = verifier_body()
    for said in questions(torch.arange(NODES)):
        first, second = pooled(body, adjacency, said).unbind(1)
        assert torch.equal(first, second)


def test_a_wrong_answer_makes_a_difference():
    adjacency, places = graphs(5)
    wrong = NODES + int(places[1])
    first, second = pooled(verifier_body(), adjacency, [(0, wrong)]).unbind(1)
    assert ((first - second).abs().amax(-1) > 1e-3).all()


@pytest.mark.parametrize("protocol", ["nip", "debate", "mnip"])
def test_whole_agents_play_and_are_scored_alike_on_every_path(protocol):
    hyper_params, handler = make(protocol)
    adjacency, _ = graphs(12)
    fields = {
        "adjacency": adjacency.to(torch.uint8),
        "node_mask": torch.ones(12, 2, NODES, dtype=torch.bool),
        "y": torch.ones(12, dtype=torch.int64),
    }
    dataset = TensorDictDataset(TensorDict(fields, [12]))
    environment = GraphIsomorphismEnvironment(hyper_params, dataset, handler, train=True)
    builder = GraphAgentBuilder()
    agents = builder.combine_agents(
        hyper_params, handler, builder.build_agents(hyper_params, handler)
    )
    agents.bind(environment)
    ids = torch.arange(12)
    td, frames, cache = environment.reset(ids, ids), [], agents.new_cache()
    for _ in range(4):
        frames.append(agents.act(td, cache=cache))
        td = environment.step(td).exclude(("agents", "reward"))
    played = torch.cat(frames).set(INDEX, torch.arange(48))
    scores = torch.stack(agents.score(played))
    torch.testing.assert_close(scores[0], played["agents", "log_prob"], rtol=1e-4, atol=1e-4)
    with agents.remembering(played):
        remembered = torch.stack(agents.score_remembered(played))
    torch.testing.assert_close(remembered, scores, rtol=1e-4, atol=1e-4)
    with only_plain_operations():
        plain = torch.stack(agents.score(played))
    torch.testing.assert_close(plain, scores, rtol=1e-4, atol=1e-4)


def test_a_tied_encoder_has_a_weight_for_each_exchange():
    assert verifier_body().encoder.weight.shape[1] == 3
    assert verifier_body(tied=False).encoder.weight.shape[1] == 6
