"""Sampled first and second derivatives, averaged over all outcomes, equal the exact ones."""

from __future__ import annotations

import itertools

import pytest
import torch

from ratchet.algorithms.policy_losses import clipped_policy_loss
from ratchet.algorithms.sampled_game import (
    Loss,
    Player,
    SampledGame,
    clipped_slope,
    pair_weights,
    policy_slope,
)

TURNS = {
    "one step, simultaneous": [["a", "b"]],
    "two steps, in turn": [["a"], ["b"]],
    "the follower first": [["b"], ["a"]],
    "three steps, two simultaneous": [["a"], ["b", "c"], ["a", "c"]],
}


@pytest.fixture(params=TURNS)
def tree(request, games):
    return games.TreeGame(TURNS[request.param], seed=3)


def vector_like(tensor, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)


@pytest.mark.parametrize("with_baseline", [False, True])
def test_all_derivatives_are_exact(tree, with_baseline):
    exact, sampled = tree.exact(), tree.sampled(with_baseline=with_baseline)
    for loss, agent in itertools.product(tree.names, tree.names):
        torch.testing.assert_close(sampled.gradient(loss, agent), exact.gradient(loss, agent))
    for loss, leader, follower in itertools.product(tree.names, repeat=3):
        if leader < follower:
            v = vector_like(tree.params[follower])
            found = sampled.mixed_products(leader, [(loss, follower, v)])
            torch.testing.assert_close(found, exact.mixed(loss, leader, follower) @ v)
            assert found.abs().max() > 1e-3
    for agent in tree.names[-1:]:
        vectors = torch.stack([vector_like(tree.params[agent], seed) for seed in range(2)])
        found = sampled.hessian_products(agent, vectors)
        torch.testing.assert_close(found, exact.hessian_products(agent, vectors))


def test_products_add_up(games):
    tree = games.TreeGame(TURNS["three steps, two simultaneous"], seed=1)
    game = tree.sampled()
    terms = [("a", "b", vector_like(tree.params["b"])), ("c", "c", vector_like(tree.params["c"]))]
    together = game.mixed_products("a", terms)
    torch.testing.assert_close(together, sum(game.mixed_products("a", [term]) for term in terms))


def test_episodes_of_a_row_are_independent():
    weight = torch.tensor([[1.0, 2.0, 3.0]])
    pairs = pair_weights(weight, torch.tensor([[0, 0, 1]]))
    assert pairs.tolist() == [[[1.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 3.0]]]


def two_rows(clip_epsilon=None):
    """Off-policy data of two agents: six rows of four steps with an episode's end."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    features = {name: draw(6, 4, 3) for name in "ab"}
    params = {name: draw(3).requires_grad_() for name in "ab"}
    acting = {"a": torch.rand(6, 4, generator=generator) < 0.7}
    acting["b"] = ~acting["a"] | (torch.rand(6, 4, generator=generator) < 0.5)
    old = {name: 0.5 * draw(6, 4) for name in "ab"}
    advantage = {name: draw(6, 4) for name in "ab"}
    episode = torch.tensor([[0, 0, 1, 1]] * 3 + [[0, 1, 1, 1]] * 3)

    def log_probs(values):
        raw = {n: 0.2 * torch.tanh(features[n] @ values[n]) for n in "ab"}
        return {n: torch.where(acting[n], x, 0.0) for n, x in raw.items()}

    return params, log_probs, acting, old, advantage, episode


def clipped_dice(params, log_probs, acting, old, advantage, episode, loss, epsilon):
    """Compute the objective itself, for brute-force differentiation."""
    total = torch.zeros(6, 4, dtype=torch.float64)
    for name, log_prob in log_probs(params).items():
        ratio = (log_prob - old[name]).exp()
        best = torch.where(
            advantage[loss] > 0, ratio.clamp(max=1 + epsilon), ratio.clamp(min=1 - epsilon)
        )
        moved = 1 + best - best.detach()
        total = total + torch.where(acting[name], moved, 1.0).log()
    steps = torch.arange(4)
    before = (episode.unsqueeze(2) == episode.unsqueeze(1)) & (steps <= steps.unsqueeze(1))
    until = (before.double() @ total.unsqueeze(2)).squeeze(2)
    return -(advantage[loss] * (until.exp() - (until - total).exp())).sum()


def test_derivatives_with_clipping_equal_those_of_the_clipped_objective():
    params, log_probs, acting, old, advantage, episode = two_rows()
    found = log_probs(params)
    losses = {
        loss: Loss(
            -advantage[loss],
            {
                n: clipped_slope(
                    found[n].detach() - old[n], advantage[loss], acting[n], clip_epsilon=0.2
                )
                for n in "ab"
            },
        )
        for loss in "ab"
    }
    assert any((slope == 0).logical_and(acting[n]).any() for n, slope in losses["a"].slopes.items())
    game = SampledGame({n: Player([params[n]], found[n]) for n in "ab"}, losses, episode)
    for loss, (one, other) in itertools.product("ab", ["ab", "ba"]):

        def objective(x, y, one=one, other=other, loss=loss):
            return clipped_dice(
                {one: x, other: y}, log_probs, acting, old, advantage, episode, loss, 0.2
            )

        inputs = (params[one].detach(), params[other].detach())
        first = torch.autograd.functional.jacobian(objective, inputs)
        second = torch.autograd.functional.hessian(objective, inputs)
        torch.testing.assert_close(game.gradient(loss, one), first[0])
        v = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
        torch.testing.assert_close(game.mixed_products(one, [(loss, other, v)]), second[0][1] @ v)
        if loss == one:
            product = game.hessian_products(one, v.unsqueeze(0)).squeeze(0)
            torch.testing.assert_close(product, second[0][0] @ v)


def test_own_clipped_gradient_equals_ppos():
    params, log_probs, acting, old, advantage, episode = two_rows()
    found = log_probs(params)
    count = acting["a"].sum()
    slope = clipped_slope(
        found["a"].detach() - old["a"], advantage["a"], acting["a"], clip_epsilon=0.2
    )
    weight = torch.where(acting["a"], -advantage["a"] / count, 0.0)
    game = SampledGame(
        {"a": Player([params["a"]], found["a"])}, {"a": Loss(weight, {"a": slope})}, episode
    )
    flat = [t.flatten().unsqueeze(1) for t in (found["a"] - old["a"], advantage["a"], acting["a"])]
    loss = clipped_policy_loss(*flat, clip_epsilon=0.2).sum()
    (expected,) = torch.autograd.grad(loss, params["a"], retain_graph=True)
    torch.testing.assert_close(game.gradient("a", "a"), expected)


def test_an_agent_that_never_acts_has_no_effect(games):
    tree = games.TreeGame([["a"]], seed=0)
    game = tree.sampled()
    idle = torch.zeros(3, requires_grad=True, dtype=torch.float64)
    silent = torch.zeros_like(game.players["a"].log_prob)
    players = {**game.players, "b": Player([idle], silent.detach())}
    slopes = {"a": game.losses["a"].slopes["a"], "b": policy_slope(silent.bool(), silent)}
    losses = {n: Loss(game.losses["a"].weight, slopes) for n in "ab"}
    both = SampledGame(players, losses, torch.zeros_like(silent).long())
    assert both.gradient("b", "b").tolist() == [0.0] * 3
    assert both.mixed_products("a", [("b", "b", torch.ones(3).double())]).abs().sum() == 0
    assert both.hessian_products("b", torch.ones(1, 3).double()).abs().sum() == 0
