"""Networks that a tape does not support exactly use autograd, compared with single operations."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.distributions import Categorical
from torch.nn.utils import parametrizations, spectral_norm

from ratchet import HyperParameters
from ratchet.agents.networks.layers import Initializer, Mlp
from ratchet.agents.tapes import enable_fast_path, only_plain_operations, record_of, run_recorded
from ratchet.scenarios.graph_isomorphism import tapes  # noqa: F401 -- registers its recorder
from ratchet.scenarios.graph_isomorphism.graph_networks import (
    TransformerShape,
    TransformerStack,
    attention_mask,
)
from ratchet.scenarios.gymnasium import tapes as gymnasium_tapes  # noqa: F401
from ratchet.scenarios.gymnasium.actor_critic import ControlActorCritic
from ratchet.scenarios.gymnasium.networks import build_agent
from ratchet.scenarios.gymnasium.spaces import AgentSpace, AgentSpaces, DiscreteActions

EXAMPLE = Path(__file__).parents[2] / "examples/own_recorder.py"


class Doubled(nn.Linear):
    """A user's layer, which computes something else."""

    def forward(self, x):
        return 2 * super().forward(x)


def _as_class(layer):
    layer.__class__ = Doubled


def _own_forward(layer):
    layer.forward = lambda x: 2 * nn.functional.linear(x, layer.weight, layer.bias)


CHANGES = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": lambda layer: parametrizations.spectral_norm(layer).eval(),
    "earlier spectral_norm": lambda layer: spectral_norm(layer).eval(),
    "forward hook": lambda layer: layer.register_forward_hook(lambda m, x, out: 3 * out),
    "forward pre-hook": lambda layer: layer.register_forward_pre_hook(lambda m, x: (x[0] / 2,)),
    "backward hook": lambda layer: layer.register_full_backward_hook(
        lambda m, of_x, of_out: tuple(None if g is None else 2 * g for g in of_x)
    ),
    "hook of a parameter": lambda layer: layer.weight.register_hook(lambda grad: 5 * grad),
    "subclass": _as_class,
    "own forward": _own_forward,
}


@pytest.fixture(scope="module")
def block_class():
    spec = importlib.util.spec_from_file_location("own_recorder", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ResidualBlock


def gradients(total, network):
    """Gradients of all parameters, as ``backward()`` puts them, hooks of them included."""
    network.zero_grad(set_to_none=True)
    total.backward()
    found = {name: parameter.grad for name, parameter in network.named_parameters()}
    assert all(grad is not None for grad in found.values()), found
    return found


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, one in found.items():
        torch.testing.assert_close(one, expected[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_part_of_a_network_of_ones_own_is_not_passed_over(block_class, change):
    torch.manual_seed(0)
    block, x = block_class(4, 5), torch.randn(6, 4)
    enable_fast_path(block)
    assert record_of(block, x) is not None
    before = block(x)
    CHANGES[change](block.inner)
    assert record_of(block, x) is None
    expected = x + block.outer(torch.tanh(block.inner(x)))
    torch.testing.assert_close(block(x), expected)
    is_seen = change not in ("weight_norm", "backward hook", "hook of a parameter")
    assert torch.allclose(before, expected) != is_seen
    judged = gradients(expected.square().sum(), block)
    assert_same(gradients(block(x).square().sum(), block), judged)


def control_agents():
    hyper_params = HyperParameters(
        scenario="gymnasium",
        trainer="vanilla_ppo",
        dataset="CartPole-v1",
        agents={"_default": {"hidden_sizes": [8, 6]}},
    )
    space = AgentSpace(4, DiscreteActions((3,)))
    section = hyper_params.agents["player"]
    agents = {"player": build_agent(hyper_params, "player", section, space, "cpu")}
    return ControlActorCritic(agents, AgentSpaces({"player": space}), normalizes=False)


def frames():
    size = 7
    agents = {
        "observation": torch.randn(size, 1, 4),
        "action": torch.arange(size).view(-1, 1, 1) % 3,
    }
    return TensorDict({"agents": TensorDict(agents, batch_size=[size])}, batch_size=[size])


def weighed(log_prob, entropy, value):
    return (log_prob + 2 * entropy + 3 * value.square()).sum()


def judged_scores(agents, td):
    """Score actions by the modules themselves and torch's distribution."""
    agent = agents.agents["player"]
    x = td["agents", "observation"][:, 0]
    for layer in agent.body.layers:
        x = torch.tanh(layer(x))
    choice = Categorical(logits=agent.policy_head.layer(x))
    value = agent.value_head.layer(x)[:, 0]
    return choice.log_prob(td["agents", "action"][:, 0, 0]), choice.entropy(), value


@pytest.mark.parametrize("where", ["hidden layer", "head"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_part_of_an_agent_of_environments_is_not_passed_over(change, where):
    torch.manual_seed(0)
    agents, td = control_agents(), frames()
    assert record_of(agents, td, None) is not None
    agent = agents.agents["player"]
    CHANGES[change](agent.body.layers[1] if where == "hidden layer" else agent.policy_head.layer)
    assert record_of(agents, td, None) is None
    found, expected = agents.score(td), judged_scores(agents, td)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[:, 0], other)
    judged = gradients(weighed(*expected), agents)
    assert_same(gradients(weighed(*agents.score(td)), agents), judged)


def test_a_part_that_was_replaced_is_not_passed_over():
    torch.manual_seed(0)
    agents, td = control_agents(), frames()
    agents.agents["player"].body.layers[0] = Doubled(4, 8)
    assert record_of(agents, td, None) is None
    expected = judged_scores(agents, td)
    for one, other in zip(agents.score(td), expected, strict=True):
        torch.testing.assert_close(one[:, 0], other)
    agents = control_agents()
    agents.parts["player"]["body"] = copy.deepcopy(agents.agents["player"].body)
    assert record_of(agents, td, None) is None, "which of the two computes is not for a tape to say"


@pytest.mark.parametrize("name", ["qkv_weight", "mlp_in_weight"])
@pytest.mark.parametrize("change", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_parametrized_transformer_computes_with_its_weights_in_their_places(change, name):
    shape = TransformerShape(d_model=8, d_mlp=16, num_heads=2, num_layers=2)
    init = Initializer(torch.Generator().manual_seed(0))
    plain = TransformerStack(shape, activation_name="tanh", dropout=0.0, init=init)
    tokens, mask = torch.randn(3, 12, 8), attention_mask(torch.ones(3, 2, 5, dtype=torch.bool))
    stack = copy.deepcopy(plain)
    enable_fast_path(stack)
    change(stack, name).eval()
    with torch.no_grad():
        getattr(plain, name).copy_(getattr(stack, name))
        assert torch.allclose(stack(tokens, mask), plain(tokens, mask), atol=1e-5)
    found = gradients(stack(tokens, mask).square().sum(), stack)
    with only_plain_operations():
        expected = gradients(stack(tokens, mask).square().sum(), stack)
    assert_same(found, expected)
    by_plain = gradients(plain(tokens, mask).square().sum(), plain)
    assert_same({"out_bias": found["out_bias"]}, {"out_bias": by_plain["out_bias"]})


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_layer_of_a_plain_perceptron_is_not_passed_over(change):
    mlp = Mlp([4, 5, 2], "tanh", Initializer(torch.Generator().manual_seed(0)))
    CHANGES[change](mlp.layers[1])
    x = torch.randn(6, 4)
    expected = mlp.layers[1](torch.tanh(mlp.layers[0](x)))
    torch.testing.assert_close(mlp(x), expected)
    judged = gradients(expected.square().sum(), mlp)
    assert_same(gradients(mlp(x).square().sum(), mlp), judged)


def test_an_unchanged_agent_is_recorded_with_the_gradients_of_its_modules():
    torch.manual_seed(0)
    agents, td = control_agents(), frames()
    record = record_of(agents, td, None)
    found = run_recorded(record, lambda: agents.score(td))
    found = gradients(weighed(*found), agents)
    assert_same(found, gradients(weighed(*judged_scores(agents, td)), agents))
