"""Opponent shaping against exact derivatives and known properties of small games."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from ratchet.algorithms.inverse_hessian import conjugate_gradient
from ratchet.algorithms.opponent_shaping import (
    followers_of,
    lola,
    shaping_weight,
    stable_opponent_shaping,
    stackelberg_policy_gradient,
)

PAIR = (("a",), ("b",))
SEQUENCES = {
    "one leads two": (("a",), ("b", "c")),
    "two lead one": (("a", "b"), ("c",)),
    "three levels": (("a",), ("b",), ("c",)),
    "no leader": (("a", "b", "c"),),
}
RATES = {"a": 0.1, "b": 0.2, "c": 0.05}
SOS = {"scaling_factor": 0.5, "threshold_factor": 0.1}


def solver(game):
    """Return a solver with the exact inverse of the Hessian."""
    return lambda agent, vector: torch.linalg.solve(game.hessian(agent), vector)


def descend(game, update, *, rate, steps):
    """Update all agents with ``update(game)`` for ``steps`` steps."""
    for _ in range(steps):
        direction = update(game).direction
        game.params = {name: game.params[name] - rate * d for name, d in direction.items()}
    return game.params


def exact_terms(game, groups):
    """Compute ξ, and χ and h of every variant, with dense matrices."""
    xi = {name: game.gradient(name, name) for group in groups for name in group}
    terms = {}
    for leader, behind in followers_of(groups).items():
        zero = torch.zeros_like(xi[leader])
        mixed = {f: game.mixed(f, leader, f) for f in behind}
        own = {f: game.mixed(leader, leader, f) for f in behind}
        cross = {f: game.gradient(leader, f) for f in behind}
        terms[leader] = (
            sum((mixed[f] @ (RATES[f] * cross[f]) for f in behind), zero),
            sum((mixed[f] @ torch.linalg.solve(game.hessian(f), cross[f]) for f in behind), zero),
            own,
        )
    return xi, terms


@pytest.fixture(params=SEQUENCES)
def three(request, games):
    return games.quadratic_game(3, 2, seed=11), SEQUENCES[request.param]


def test_lola_equals_dense_derivatives(three):
    game, groups = three
    xi, terms = exact_terms(game, groups)
    for additional in (True, False):
        found = lola(game, groups, RATES, additional_term=additional)
        for name, (chi, _, own) in terms.items():
            h = sum((m @ (RATES[f] * found.direction[f]) for f, m in own.items()), 0 * chi)
            expected = xi[name] - chi - (h if additional else 0)
            torch.testing.assert_close(found.direction[name], expected)
            torch.testing.assert_close(found.shaping[name], chi)
            assert (found.hessian_term[name].abs().sum() > 0) == (additional and bool(own))


def test_spg_equals_dense_derivatives(three):
    game, groups = three
    xi, terms = exact_terms(game, groups)
    found = stackelberg_policy_gradient(game, groups, solver(game))
    for name, (_, chi, _) in terms.items():
        torch.testing.assert_close(found.direction[name], xi[name] - chi)
        torch.testing.assert_close(found.shaping[name], chi)


def test_sos_equals_dense_derivatives(three):
    game, groups = three
    xi, terms = exact_terms(game, groups)
    found = stable_opponent_shaping(game, groups, RATES, **SOS)
    h = {
        name: sum((m @ (RATES[f] * xi[f]) for f, m in own.items()), 0 * chi)
        for name, (chi, _, own) in terms.items()
    }
    chi = torch.cat([chi for chi, _, _ in terms.values()])
    xi_0 = torch.cat([xi[name] - h[name] for name in xi])
    dot = float(-chi @ xi_0)
    p1 = 1 if dot >= 0 else min(1, -0.5 * float(xi_0 @ xi_0) / dot)
    norm = math.sqrt(sum(float(x @ x) for x in xi.values()))
    p = min(p1, norm**2 if norm < 0.1 else 1)
    assert found.shaping_weight == pytest.approx(p)
    torch.testing.assert_close(torch.cat(list(found.direction.values())), xi_0 - p * chi)


UPDATES = {
    "spg": lambda game, groups: stackelberg_policy_gradient(game, groups, solver(game)),
    "lola": lambda game, groups: lola(game, groups, RATES),
    "sos": lambda game, groups: stable_opponent_shaping(game, groups, RATES, **SOS),
}


@pytest.mark.parametrize("kind", UPDATES)
def test_gradients_are_not_modified_in_place(three, kind):
    game, groups = three
    given = []

    class Watched:
        hessian_products, mixed_products = game.hessian_products, game.mixed_products

        @staticmethod
        def gradient(loss, agent):
            found = game.gradient(loss, agent)
            given.append((found, found.clone()))
            return found

    Watched.hessian = game.hessian
    before = {name: game.gradient(name, name) for name in "abc"}
    update = UPDATES[kind](Watched, groups)
    assert all(torch.equal(found, copy) for found, copy in given)
    assert all(torch.equal(update.simultaneous[name], before[name]) for name in "abc")


@pytest.mark.parametrize("kind", UPDATES)
def test_without_followers_all_agents_follow_their_gradients(games, kind):
    game = games.quadratic_game(3, 2, seed=3)
    update = UPDATES[kind](game, SEQUENCES["no leader"])
    for name in "abc":
        assert torch.equal(update.direction[name], game.gradient(name, name))
        assert update.shaping[name].abs().sum() == 0


def test_lola_is_the_gradient_through_the_followers_step(games):
    game = games.quadratic_game(2, 2, seed=5)
    exact = {}
    for rate in (1e-2, 1e-3):
        a = game.params["a"].clone().requires_grad_()
        b = game.params["b"].clone().requires_grad_()
        step = torch.autograd.grad(game.losses["b"]({"a": a, "b": b}), b, create_graph=True)[0]
        ahead = game.losses["a"]({"a": a, "b": b - rate * step})
        (through,) = torch.autograd.grad(ahead, a)
        found = lola(game, PAIR, {"b": rate}).direction["a"]
        exact[rate] = float((found - through).norm())
    # LOLA is exact to first order, so a tenth of the rate gives a hundredth of the difference.
    assert exact[1e-3] < 2e-2 * exact[1e-2]


def test_lola_golden_values_on_matching_pennies(games):
    # L_a = −(2p−1)(2q−1) = −L_b; with P = p(1−p), Q = q(1−q): ∂_a∂_b L_b = 4PQ,
    # ∂_b L_a = −2(2p−1)Q, so χ = 4PQ·η·(−2(2p−1)Q).
    x, y, eta = 0.4, -0.3, 0.5
    p, q = 1 / (1 + math.exp(-x)), 1 / (1 + math.exp(-y))
    big_p, big_q = p * (1 - p), q * (1 - q)
    found = lola(games.matching_pennies(x, y), PAIR, {"b": eta})
    assert found.simultaneous["a"].item() == pytest.approx(-2 * big_p * (2 * q - 1))
    assert found.shaping["a"].item() == pytest.approx(-8 * eta * big_p * big_q**2 * (2 * p - 1))
    g_bb = 2 * big_q * (2 * p - 1)
    assert found.hessian_term["a"].item() == pytest.approx(-4 * big_p * big_q * eta * g_bb)
    # Both terms move the leader towards the centre; ξ on its own only circles around it.
    assert -found.shaping["a"].item() > 0
    assert -found.hessian_term["a"].item() > 0


def distance_from_the_middle(params):
    return math.hypot(*(value.item() for value in params.values()))


@pytest.mark.parametrize("kind", ["lola", "sos"])
def test_shaping_converges_on_matching_pennies_where_plain_gradients_diverge(games, kind):
    start = distance_from_the_middle({"a": torch.tensor(0.5), "b": torch.tensor(0.5)})
    rates = {"b": 1.0}
    shaped = {
        "lola": partial(lola, groups=PAIR, rates=rates),
        "sos": partial(stable_opponent_shaping, groups=PAIR, rates=rates, **SOS),
    }[kind]
    plain = partial(lola, groups=(("a", "b"),), rates=rates)
    ends = {
        name: descend(games.matching_pennies(0.5, 0.5), update, rate=1.0, steps=60)
        for name, update in (("shaped", shaped), ("plain", plain))
    }
    assert distance_from_the_middle(ends["plain"]) > 1.5 * start
    assert distance_from_the_middle(ends["shaped"]) < 0.6 * start


def test_lola_leaves_the_fixed_points_of_the_tandem_game_and_sos_keeps_them(games):
    # On x + y = 1 no agent gains by deviating alone. ∂_a∂_b L_b = 2 and ∂_b L_a = 2(x + y): χ = 4η.
    game, eta = games.tandem(0.3, 0.7), 0.1
    moved = lola(game, PAIR, {"b": eta}).direction
    assert moved["a"].item() == pytest.approx(-4 * eta)
    kept = stable_opponent_shaping(game, PAIR, {"b": eta}, **SOS)
    assert kept.shaping["a"].item() == pytest.approx(4 * eta)
    assert kept.direction["a"].item() == pytest.approx(0, abs=1e-12)
    assert kept.direction["b"].item() == pytest.approx(0, abs=1e-12)


def test_sos_converges_to_an_equilibrium_of_the_tandem_game(games):
    update = partial(stable_opponent_shaping, groups=PAIR, rates={"b": 0.1}, **SOS)
    params = descend(games.tandem(1.0, 2.0), update, rate=0.2, steps=100)
    assert params["a"].item() + params["b"].item() == pytest.approx(1.0, abs=1e-3)
    leader = partial(lola, groups=PAIR, rates={"b": 0.1})
    params = descend(games.tandem(1.0, 2.0), leader, rate=0.2, steps=100)
    assert abs(params["a"].item() + params["b"].item() - 1.0) > 0.01


def test_sos_keeps_fixed_points_in_longer_sequences_too(games):
    # At the solution, ξ = 0 for each agent's parameters, but g_ij ≠ 0 for the others'.
    game = games.quadratic_game(3, 1, seed=2)
    target = torch.linalg.solve(
        torch.stack(
            [
                torch.stack(
                    [
                        game.mixed(i, i, j).squeeze() if i != j else game.hessian(i).squeeze()
                        for j in "abc"
                    ]
                )
                for i in "abc"
            ]
        ),
        -torch.stack([game.gradient(i, i).squeeze() for i in "abc"]),
    )
    game.params = {n: game.params[n] + target[k] for k, n in enumerate("abc")}
    found = stable_opponent_shaping(game, SEQUENCES["three levels"], RATES, **SOS)
    assert all(vector.abs().item() > 1e-3 for n, vector in found.shaping.items() if n != "c")
    for vector in found.direction.values():
        assert vector.item() == pytest.approx(0, abs=1e-9)


def test_spg_follows_the_gradient_of_the_leaders_loss_at_the_best_response(games):
    game = games.quadratic_game(2, 2, seed=8)

    def best_response(a):
        # b's loss is quadratic, so one Newton step from anywhere finds its minimum.
        params = {"a": a, "b": game.params["b"]}
        hessian, mixed = game.hessian("b"), game.mixed("b", "b", "a")
        shift = game.gradient("b", "b") + mixed @ (a - game.params["a"])
        return params["b"] - torch.linalg.solve(hessian, shift)

    game.params["b"] = best_response(game.params["a"])
    start = game.params["a"].clone().requires_grad_()
    value = game.losses["a"]({"a": start, "b": best_response(start)})
    (total,) = torch.autograd.grad(value, start)
    found = stackelberg_policy_gradient(game, PAIR, solver(game)).direction["a"]
    torch.testing.assert_close(found, total)


def test_spg_with_hessian_products_equals_spg_with_a_dense_solve(games):
    game = games.quadratic_game(3, 3, seed=9)

    def solve(agent, vector):
        return conjugate_gradient(partial(game.hessian_products, agent), vector, num_iterations=3)

    groups = SEQUENCES["one leads two"]
    found = stackelberg_policy_gradient(game, groups, solve).direction["a"]
    dense = stackelberg_policy_gradient(game, groups, solver(game)).direction["a"]
    torch.testing.assert_close(found, dense, rtol=1e-4, atol=1e-5)


def test_spg_reaches_the_stackelberg_equilibrium_and_plain_gradients_another_point(games):
    # L_a = ½a² + ab, L_b = ½(b − a)²: b's best response is a, so a minimises 1.5 a²… plus a shift.
    losses = {
        "a": lambda p: (0.5 * p["a"] ** 2 + p["a"] * p["b"] - p["a"]).squeeze(),
        "b": lambda p: (0.5 * (p["b"] - p["a"]) ** 2).squeeze(),
    }
    start = {"a": torch.tensor([1.0]), "b": torch.tensor([-1.0])}
    game = games.ExactGame(losses, start)
    params = descend(
        game, lambda g: stackelberg_policy_gradient(g, PAIR, solver(g)), rate=0.3, steps=60
    )
    assert params["a"].item() == pytest.approx(1 / 3, abs=1e-4)  # minimises 1.5 a² − a
    nash = descend(
        games.ExactGame(losses, start),
        partial(lola, groups=(("a", "b"),), rates={}),
        rate=0.3,
        steps=60,
    )
    assert nash["a"].item() == pytest.approx(1 / 2, abs=1e-4)  # a + b − 1 = 0 and b = a


@pytest.mark.parametrize(
    ("chi", "xi_0", "expected"),
    [
        ([1.0, 0.0], [-1.0, 3.0], 1.0),  # −χ·ξ₀ = 1 ≥ 0
        ([0.0, 1.0], [1.0, 0.0], 1.0),  # −χ·ξ₀ = 0
        ([4.0, 0.0], [1.0, 0.0], 0.125),  # 0.5·1/4
        ([0.1, 0.0], [1.0, 0.0], 1.0),  # 0.5·1/0.1 > 1
    ],
)
def test_first_criterion_golden_values(chi, xi_0, expected):
    xi = {"a": torch.tensor([5.0, 0.0])}
    found = shaping_weight(xi, {"a": torch.tensor(xi_0)}, {"a": torch.tensor(chi)}, **SOS)
    assert found == pytest.approx(expected)


def test_second_criterion_golden_values():
    chi, xi_0 = {"a": torch.tensor([-1.0])}, {"a": torch.tensor([1.0])}
    for length, expected in ((0.05, 0.0025), (0.2, 1.0), (0.0, 0.0)):
        xi = {"a": torch.tensor([length])}
        assert shaping_weight(xi, xi_0, chi, **SOS) == pytest.approx(expected)


def test_all_agents_of_later_groups_are_followers():
    assert followers_of((("a",), ("b", "c"), ("d",))) == {
        "a": ("b", "c", "d"),
        "b": ("d",),
        "c": ("d",),
        "d": (),
    }
