"""Bodies on the fast path against plain ones: values, gradients, higher derivatives."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch.func import functional_call, grad

from ratchet import ExperimentSettings, HyperParameters
from ratchet.agents.networks import layers
from ratchet.agents.networks.layers import Initializer
from ratchet.agents.parts import AgentInput
from ratchet.fast import transformer
from ratchet.fast.dispatch import only_plain_operations
from ratchet.fast.transformer import transform
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.graph_isomorphism.body import GraphIsomorphismBody, GraphPerception
from ratchet.scenarios.graph_isomorphism.graph_networks import (
    GinStack,
    NeighbourSums,
    TransformerShape,
    TransformerStack,
    attention_mask,
)
from ratchet.scenarios.graph_isomorphism.parameters import GraphIsomorphismAgentParameters

B, N, ROUNDS = 7, 5, 3
SMALL = {"num_gnn_layers": 3, "num_transformer_layers": 2, "d_gin_mlp": 8, "d_transformer_mlp": 8}
KINDS = {
    "dual": {},
    "single": {"use_dual_gnn": False},
    "bare": {"use_batch_norm": False, "use_pair_invariant_pooling": False},
    "rounded": {"gnn_output_digits": 3},
    "one layer": {"num_gnn_layers": 1, "num_transformer_layers": 1},
}


def shaken(module):
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return module


def make_inputs():
    """Conversations over pairs of graphs of different sizes, with messages said once."""
    generator = torch.Generator().manual_seed(0)
    upper = (torch.rand(B, 2, N, N, generator=generator) < 0.5).triu(1)
    mask = torch.arange(N).expand(B, 2, N) < torch.tensor([3, 4, 5, 5, 4, 3, 5])[:, None, None]
    adjacency = (upper | upper.mT) & mask.unsqueeze(-1) & mask.unsqueeze(-2)
    data = TensorDict({"adjacency": adjacency.to(torch.uint8), "node_mask": mask}, [B])
    said = torch.randint(0, 2 * N, (B, ROUNDS, 1, 1), generator=generator)
    history = torch.nn.functional.one_hot(said, 2 * N).float()
    inputs = AgentInput(torch.arange(B), history, history[:, 0], GraphPerception().prepare(data))
    inputs.linear_history = torch.randn(B, ROUNDS, 4, generator=generator)
    return inputs


def make_body(kind, d_linear_history=None):
    parameters = GraphIsomorphismAgentParameters(**{**SMALL, **KINDS[kind]})
    init = Initializer(torch.Generator().manual_seed(0))
    return shaken(GraphIsomorphismBody(parameters, ROUNDS, 6, init, d_linear_history))


def derivatives(body, inputs, *, second):
    """The body's outputs, and their derivatives with respect to its parameters."""
    weights = list(body.parameters())
    made = body(inputs)
    outputs = [made.pooled, made.symbols * inputs.data["node_weight"].flatten(1).unsqueeze(2)]
    total = sum((out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum() for out in outputs)
    first = torch.autograd.grad(total, weights, create_graph=second)
    if not second:
        return [*outputs, *first]
    return torch.autograd.grad(total + sum(g.square().sum() for g in first), weights)


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_body_on_the_fast_path_equals_a_plain_one(kind, second):
    linear = 12 if kind in ("single", "bare") else None
    body, inputs = make_body(kind, linear), make_inputs()
    found = derivatives(body, inputs, second=second)
    with only_plain_operations():
        expected = derivatives(body, inputs, second=second)
    scale = max(float(tensor.detach().abs().max()) for tensor in expected)
    for one, another in zip(found, expected, strict=True):
        torch.testing.assert_close(one, another, rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("kind", ["dual", "single"])
def test_what_is_remembered_and_taken_row_by_row_changes_nothing(kind):
    body, inputs = make_body(kind), make_inputs()
    twice = torch.arange(2 * B) % B  # enough rows that sums are shared
    rows = torch.tensor([4, 1, 1, 6])
    for which in (twice, rows):
        expected = derivatives(body, inputs.take(which), second=False)
        inputs.precomputed = body.precompute(inputs)
        found = derivatives(body, inputs.take(which), second=False)
        inputs.precomputed = None
        for one, another in zip(found, expected, strict=True):
            torch.testing.assert_close(one, another, rtol=1e-3, atol=1e-3)


def test_sums_that_are_the_same_are_computed_once():
    adjacency = make_inputs().data["adjacency"]
    features = torch.zeros(B, 2, N, ROUNDS)
    seeds = NeighbourSums.of(features, adjacency, bare_copy=False, share=True)
    degrees = adjacency.sum(-1).flatten()
    assert len(seeds.sums) == len(degrees.unique())
    assert torch.equal(seeds.sums[seeds.index.flatten(), -1], degrees)


def test_functional_transforms_and_forward_mode_fall_back_to_plain():
    body, inputs = make_body("dual"), make_inputs()
    weights = dict(body.named_parameters())

    def loss(parameters):
        made = functional_call(body, parameters, (inputs,))
        return made.pooled.square().sum() + made.symbols.square().sum()

    found = grad(loss)(weights)
    expected = torch.autograd.grad(loss(weights), list(weights.values()))
    for one, another in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, another, rtol=1e-3, atol=1e-3)
    tangents = {name: torch.ones_like(value) for name, value in weights.items()}
    _, slope = torch.func.jvp(loss, (weights,), (tangents,))
    torch.testing.assert_close(slope, sum(g.sum() for g in expected), rtol=1e-3, atol=1e-2)


def make_stack(cls=TransformerStack, **changes):
    shape = TransformerShape(d_model=8, d_mlp=16, num_heads=2, num_layers=2)
    init = Initializer(torch.Generator().manual_seed(0))
    options = {"activation_name": "tanh", "dropout": 0.0, **changes}
    return cls(shape, **options, init=init)


def tokens_and_mask():
    return torch.randn(3, 12, 8), attention_mask(torch.ones(3, 2, 5, dtype=torch.bool))


def test_scores_far_beyond_the_cut_stay_finite():
    stack = make_stack()
    stack.qkv_weight.data *= 1e3
    out = stack(*tokens_and_mask())
    out.square().sum().backward()
    assert out.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in stack.parameters())


class CustomStack(TransformerStack):
    """A user's, which computes something else."""

    def forward(self, tokens, mask):
        return 2 * tokens


def test_a_transformer_takes_the_fast_path_where_it_is_supported():
    tokens, mask = tokens_and_mask()
    assert transform(make_stack(), tokens, mask) is not None
    assert transform(make_stack(activation_name="relu"), tokens, mask) is None
    assert transform(make_stack(dropout=0.5), tokens, mask) is None
    assert transform(make_stack(dropout=0.5).eval(), tokens, mask) is not None
    assert transform(make_stack().double(), tokens.double(), mask) is None
    own = make_stack(CustomStack)
    assert torch.equal(own(tokens, mask), 2 * tokens)


def test_hooks_are_called_on_the_fast_path():
    stack, seen = make_stack(), []
    stack.register_forward_hook(lambda *call: seen.append(call))
    stack(*tokens_and_mask())
    assert len(seen) == 1


@pytest.mark.slow
def test_built_bodies_take_the_fast_path(monkeypatch):
    called = []
    attend = transformer._attend
    monkeypatch.setattr(transformer, "_attend", lambda *call: called.append(call) or attend(*call))
    parameters = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="er1000",
        pretrain_agents=True,
        agents={"_default": {"num_transformer_layers": 1}},
    )
    instance = build_scenario_instance(parameters, ExperimentSettings())
    data = instance.train_environment.gather_data(torch.arange(2))
    instance.combined_agents.solo_logits("verifier", data)
    assert len(called) == 1


@pytest.mark.parametrize(("activation", "large"), [("tanh", 0), ("tanh", 2**30), ("relu", 0)])
def test_a_stack_of_gnn_layers_sums_over_neighbours(activation, large, monkeypatch):
    """With every sum found once, against one matrix product a layer and torch's activations."""
    monkeypatch.setattr(layers, "_LARGE", large)
    init, inputs = Initializer(torch.Generator().manual_seed(0)), make_inputs()
    stack = shaken(GinStack(3, 8, 16, activation_name=activation, init=init))
    encoder = init.linear(4, 8)
    adjacency = inputs.data["adjacency"]
    features = torch.randn(B, 2, N, 4)
    found = NeighbourSums.of(features, adjacency, bare_copy=True, share=True)
    both = torch.cat([encoder.weight, encoder.bias.unsqueeze(1)], dim=1)
    made = stack(torch.nn.functional.linear(found.sums, both), found.index, adjacency)
    copies = torch.stack([features, torch.zeros_like(features)], dim=3).flatten(0, 1)
    x, act = encoder(copies), getattr(torch, activation)
    for w_in, b_in, w_out, b_out in zip(*stack.parameters(), strict=True):
        x = torch.einsum("gmn,gncd->gmcd", adjacency.flatten(0, 1), x)
        x = act(x @ w_in.mT + b_in) @ w_out.mT + b_out
    expected = x.flatten(2)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
    ways = torch.linspace(-1, 1, made.numel()).view(made.shape)
    weights = [*stack.parameters(), *encoder.parameters()]
    one, other = (torch.autograd.grad((out * ways).sum(), weights) for out in (made, expected))
    for mine, plain in zip(one, other, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-3, atol=1e-3)


def test_nodes_attend_to_pooled_tokens_and_the_other_graph_only():
    nodes = torch.tensor([[[True, True, False], [True, True, True]]])
    mask = attention_mask(nodes)[0].mT.bool()  # query, key
    assert torch.equal(mask[0], torch.tensor([1, 1, 1, 1, 0, 1, 1, 1], dtype=torch.bool))
    assert torch.equal(mask[2], torch.tensor([1, 1, 0, 0, 0, 1, 1, 1], dtype=torch.bool))
    assert torch.equal(mask[5], torch.tensor([1, 1, 1, 1, 0, 0, 0, 0], dtype=torch.bool))
