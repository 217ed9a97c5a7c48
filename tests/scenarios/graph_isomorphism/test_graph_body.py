"""Symmetries of the graph body, and that absent nodes have no influence."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from ratchet.agents.networks.layers import Initializer
from ratchet.agents.parts import AgentInput
from ratchet.scenarios.graph_isomorphism.body import GraphIsomorphismBody, GraphPerception
from ratchet.scenarios.graph_isomorphism.parameters import GraphIsomorphismAgentParameters

B, N, ROUNDS = 5, 6, 3
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def make_body(**changes):
    parameters = GraphIsomorphismAgentParameters(
        num_gnn_layers=2, num_transformer_layers=2, d_gin_mlp=8, **changes
    )
    init = Initializer(torch.Generator().manual_seed(0))
    body = GraphIsomorphismBody(parameters, ROUNDS, 7, init)
    for parameter in body.parameters():  # so that biases count too
        parameter.data += 0.1 * torch.randn(
            parameter.shape, generator=torch.Generator().manual_seed(1)
        )
    return body


def make_data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    upper = (torch.rand(B, 2, N, N, generator=generator) < 0.5).triu(1)
    sizes = torch.randint(4, N + 1, (B,), generator=generator)
    mask = torch.arange(N).expand(B, 2, N) < sizes[:, None, None]
    adjacency = (upper | upper.mT) & mask.unsqueeze(-1) & mask.unsqueeze(-2)
    history = torch.randn(B, ROUNDS, 1, 1, 2 * N, generator=generator)
    return adjacency, mask, history


def run(body, adjacency, mask, history, invariant=False):
    data = GraphPerception().prepare(
        TensorDict({"adjacency": adjacency.to(torch.uint8), "node_mask": mask}, [B])
    )
    inputs = AgentInput(torch.zeros(B, dtype=torch.int64), history, history[:, 0], data)
    if invariant:
        inputs.invariant = body.invariant(data)
    return body(inputs)


@pytest.fixture(params=[True, False], ids=["dual", "single"])
def body(request):
    return make_body(use_dual_gnn=request.param)


def test_relabelling_nodes_permutes_node_outputs_and_leaves_the_whole(body):
    adjacency, mask, history = make_data()
    out = run(body, adjacency, mask, history)
    orders = [torch.randperm(N, generator=torch.Generator().manual_seed(s)) for s in (0, 1)]
    both = torch.cat([orders[0], N + orders[1]])
    moved = torch.stack([adjacency[:, g][:, o][:, :, o] for g, o in enumerate(orders)], 1)
    masks = torch.stack([mask[:, g][:, o] for g, o in enumerate(orders)], 1)
    again = run(body, moved, masks, history[..., both])
    torch.testing.assert_close(again.pooled, out.pooled, **CLOSE)
    present = masks.flatten(1)
    torch.testing.assert_close(again.symbols[present], out.symbols[:, both][present], **CLOSE)


def test_swapping_the_graphs_swaps_node_outputs_and_leaves_the_whole(body):
    adjacency, mask, history = make_data()
    out = run(body, adjacency, mask, history)
    swap = torch.cat([torch.arange(N, 2 * N), torch.arange(N)])
    again = run(body, adjacency.flip(1), mask.flip(1), history[..., swap])
    torch.testing.assert_close(again.pooled, out.pooled, **CLOSE)
    torch.testing.assert_close(again.symbols, out.symbols[:, swap], **CLOSE)


def test_without_pair_invariance_the_order_of_the_graphs_counts():
    body = make_body(use_pair_invariant_pooling=False)
    adjacency, mask, history = make_data()
    swap = torch.cat([torch.arange(N, 2 * N), torch.arange(N)])
    out = run(body, adjacency, mask, history)
    again = run(body, adjacency.flip(1), mask.flip(1), history[..., swap])
    assert (out.pooled - again.pooled).abs().max() > 1e-2


def test_what_is_said_at_absent_nodes_has_no_influence(body):
    adjacency, mask, history = make_data()
    absent = ~mask.flatten(1)
    assert absent.any()
    out = run(body, adjacency, mask, history)
    changed = history + 10 * absent[:, None, None, None]
    again = run(body, adjacency, mask, changed)
    torch.testing.assert_close(again.pooled, out.pooled)
    torch.testing.assert_close(again.symbols[mask.flatten(1)], out.symbols[mask.flatten(1)])


def test_padding_with_absent_nodes_changes_nothing(body):
    adjacency, mask, history = make_data()
    out = run(body, adjacency, mask, history)
    wide = torch.nn.functional.pad(adjacency, (0, 3, 0, 3))
    wide_mask = torch.nn.functional.pad(mask, (0, 3))
    wide_history = torch.nn.functional.pad(history.unflatten(-1, (2, N)), (0, 3)).flatten(-2)
    again = run(body, wide, wide_mask, wide_history)
    torch.testing.assert_close(again.pooled, out.pooled, **CLOSE)
    torch.testing.assert_close(
        again.symbols[wide_mask.flatten(1)], out.symbols[mask.flatten(1)], **CLOSE
    )


def test_what_the_graph_looks_like_and_what_is_said_both_count(body):
    adjacency, mask, history = make_data()
    out = run(body, adjacency, mask, history)
    assert (run(body, adjacency, mask, history * 0).pooled - out.pooled).abs().max() > 1e-2
    assert (run(body, adjacency * 0, mask, history).pooled - out.pooled).abs().max() > 1e-2


def test_the_message_free_part_given_from_outside_changes_nothing():
    body = make_body()
    out = run(body, *make_data())
    again = run(body, *make_data(), invariant=True)
    torch.testing.assert_close(again.pooled, out.pooled, **CLOSE)
    torch.testing.assert_close(again.symbols, out.symbols, **CLOSE)
    assert make_body(use_dual_gnn=False).invariant({}) is None


def test_no_message_changes_the_dual_part():
    body = make_body()
    data = GraphPerception().prepare(
        TensorDict({"adjacency": make_data()[0].to(torch.uint8), "node_mask": make_data()[1]}, [B])
    )
    dual = body.invariant(data).flatten(0, 1)
    for history in (make_data()[2], make_data(1)[2]):
        inputs = AgentInput(torch.zeros(B, dtype=torch.int64), history, history[:, 0], data)
        nodes = body._run_gnn(inputs)
        torch.testing.assert_close(nodes[..., 16:], dual, **CLOSE)


def test_digits_round_the_gnn_and_let_gradients_through():
    body = make_body(gnn_output_digits=2)
    adjacency, mask, history = make_data()
    data = GraphPerception().prepare(
        TensorDict({"adjacency": adjacency.to(torch.uint8), "node_mask": mask}, [B])
    )
    nodes = body._run_gnn(
        AgentInput(torch.zeros(B, dtype=torch.int64), history, history[:, 0], data)
    )
    torch.testing.assert_close(nodes * 100, (nodes * 100).round(), rtol=0, atol=1e-3)
    nodes.square().sum().backward()
    assert body.gnn.in_weight.grad.any()


def test_noise_is_the_same_for_both_graphs_and_only_in_training():
    body = make_body(noise_sigma=1.0)
    adjacency, mask, _ = make_data()
    twins = adjacency[:, :1].expand_as(adjacency)
    same_mask = mask[:, :1].expand_as(mask)
    data = GraphPerception().prepare(
        TensorDict({"adjacency": twins.to(torch.uint8), "node_mask": same_mask}, [B])
    )
    nodes = torch.randn(B, 1, N, 32).expand(B, 2, N, 32).flatten(0, 1)
    inputs = SimpleNamespace(generator=torch.Generator().manual_seed(0), acts=None)
    first = body._pool(nodes, data["node_weight"], inputs)
    torch.testing.assert_close(first[:, 1], torch.zeros(B, 32), rtol=0, atol=1e-5)
    assert (first - body._pool(nodes, data["node_weight"], inputs)).abs().max() > 0.1
    body.eval()
    out = body._pool(nodes, data["node_weight"], inputs)
    torch.testing.assert_close(out, body._pool(nodes, data["node_weight"], inputs))


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "sigmoid"])
def test_other_activation_functions_keep_the_symmetry(name):
    body = make_body(activation_function=name, transformer_dropout=0.5).eval()
    adjacency, mask, history = make_data()
    swap = torch.cat([torch.arange(N, 2 * N), torch.arange(N)])
    out = run(body, adjacency, mask, history)
    again = run(body, adjacency.flip(1), mask.flip(1), history[..., swap])
    torch.testing.assert_close(again.pooled, out.pooled, rtol=1e-3, atol=1e-3)
