"""Opponent shaping: agents account for how others learn from their actions.

Agents form a Stackelberg sequence of groups, leaders first; a leader shapes all agents in later
groups, members of one group do not shape each other. L_i is agent i's loss and g_ij its gradient
with respect to agent j's parameters. Second derivatives are never built, only applied to vectors
by a :class:`DifferentiableGame`. Shape letters: P_i parameters of agent i, in one flat vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Groups = Sequence[Sequence[str]]
Vectors = dict[str, Tensor]
Solve = Callable[[str, Tensor], Tensor]
"""(follower f, vector [P_f]) → (∇²_ff L_f)⁻¹ vector."""
Product = tuple[str, str, Tensor]
"""(i, f, v) represents [∇_l∇_f L_i] v, for any l."""


class DifferentiableGame(Protocol):
    """Losses of agents as functions of all agents' parameters, at their current values.

    Returned tensors belong to the caller: the game never changes them afterwards.
    """

    def gradient(self, loss: str, agent: str) -> Tensor:
        """Return g = ∇_agent L_loss: [P_agent]."""

    def mixed_products(self, leader: str, products: Iterable[Product]) -> Tensor:
        """Sum [∇_leader∇_f L_i] v over triples (i, f ≠ leader, v [P_f]): [P_leader]."""

    def hessian_products(self, agent: str, vectors: Tensor) -> Tensor:
        """Apply ∇²L_agent with respect to the agent's own parameters to the rows of [k, P]."""


class ShapedUpdate(NamedTuple):
    """Descent direction of each agent, and its terms; [P_i] for each agent i."""

    direction: Vectors
    """D: replaces the gradient."""
    simultaneous: Vectors
    """ξ: each agent's own gradient g_ii."""
    shaping: Vectors
    """χ: change of the leader's loss through the followers' learning; 0 without followers."""
    hessian_term: Vectors
    """h: change of the leader's own gradient by the followers' next step."""
    shaping_weight: float
    """p: weight of χ in D."""


def followers_of(groups: Groups) -> dict[str, tuple[str, ...]]:
    """Return the followers of each agent: all agents in later groups."""
    return {
        leader: tuple(follower for later_group in groups[index + 1 :] for follower in later_group)
        for index, group in enumerate(groups)
        for leader in group
    }


def stackelberg_policy_gradient(
    game: DifferentiableGame, groups: Groups, solve: Solve
) -> ShapedUpdate:
    """Return the total derivative of each leader's loss: D_l = g_ll − χ_l.

    χ_l = Σ_f [∇_l∇_f L_f] (∇²_ff L_f)⁻¹ g_lf, by the implicit function theorem (Fiez et al. 2020,
    eq. 2) with each follower at its best response. The paper has one follower; with more of them
    each responds independently; effects of followers on each other are ignored.
    """
    xi = _simultaneous(game, groups)
    chi = _shaping_terms(game, groups, xi, solve)
    direction = {name: xi[name] - chi[name] for name in xi}
    nothing = {name: torch.zeros_like(gradient) for name, gradient in xi.items()}
    return ShapedUpdate(direction, xi, chi, nothing, 1.0)


def lola(
    game: DifferentiableGame,
    groups: Groups,
    rates: Mapping[str, Tensor],
    *,
    additional_term: bool = True,
) -> ShapedUpdate:
    """Compute the update of opponent-learning awareness: D_l = g_ll − χ_l − h_l.

    The gradient of L_l(θ_l, θ_f − η_f g_ff) to first order in η (Foerster et al. 2018, eq. 4.2;
    they omit h, Letcher et al. 2019 include it): χ_l = Σ_f [∇_l∇_f L_f] η_f g_lf and
    h_l = Σ_f η_f [∇_l∇_f L_l] D_f. In the papers both players shape each other and D_f is g_ff.
    Here the order of groups defines which agent shapes which, and a follower that has followers
    is expected to take its actual step; with two groups that is g_ff again.

    Parameters
    ----------
    rates
        η_f, [P_f] or a scalar for each follower.
    additional_term
        Whether D includes h.
    """
    xi = _simultaneous(game, groups)
    chi = _shaping_terms(game, groups, xi, lambda name, vector: rates[name] * vector)
    h = {name: torch.zeros_like(gradient) for name, gradient in xi.items()}
    direction: Vectors = {}
    followers = followers_of(groups)
    for leader in (name for group in reversed(groups) for name in group):
        if additional_term and followers[leader]:
            steps = {name: rates[name] * direction[name] for name in followers[leader]}
            h[leader] = _hessian_term(game, leader, steps)
        direction[leader] = xi[leader] - chi[leader] - h[leader]
    return ShapedUpdate(direction, xi, chi, h, 1.0)


def stable_opponent_shaping(
    game: DifferentiableGame,
    groups: Groups,
    rates: Mapping[str, Tensor],
    *,
    scaling_factor: float,
    threshold_factor: float,
) -> ShapedUpdate:
    """Compute the stable update D = ξ₀ − p·χ with ξ₀ = ξ − h (Letcher et al. 2019, alg. 1).

    χ as for :func:`lola`. h_l = Σ_f η_f [∇_l∇_f L_l] g_ff also where a follower has followers:
    with D_f instead of g_ff, which contains a χ that no p scales, D would not vanish where ξ does,
    and the update would leave fixed points that the algorithm preserves.

    Parameters
    ----------
    groups
        The Stackelberg sequence; agents without followers have χ = h = 0.
    rates
        η_f, [P_f] or a scalar for each follower.
    scaling_factor, threshold_factor
        a and b of :func:`shaping_weight`.
    """
    xi = _simultaneous(game, groups)
    chi = _shaping_terms(game, groups, xi, lambda name, vector: rates[name] * vector)
    h = {name: torch.zeros_like(gradient) for name, gradient in xi.items()}
    for leader, followers in followers_of(groups).items():
        if followers:
            steps = {name: rates[name] * xi[name] for name in followers}
            h[leader] = _hessian_term(game, leader, steps)
    look_ahead = {name: xi[name] - h[name] for name in xi}
    weight = shaping_weight(
        xi, look_ahead, chi, scaling_factor=scaling_factor, threshold_factor=threshold_factor
    )
    direction = {name: look_ahead[name] - weight * chi[name] for name in xi}
    return ShapedUpdate(direction, xi, chi, h, weight)


def shaping_weight(
    xi: Mapping[str, Tensor],
    look_ahead: Mapping[str, Tensor],
    chi: Mapping[str, Tensor],
    *,
    scaling_factor: float,
    threshold_factor: float,
) -> float:
    """Return p = min(p₁, p₂) of stable opponent shaping, over all agents' parameters together.

    p₁ = 1 where −χ·ξ₀ ≥ 0 and min(1, −a‖ξ₀‖²/(−χ·ξ₀)) elsewhere, so that D keeps an acute angle
    with ξ₀; p₂ = ‖ξ‖² where ‖ξ‖ < b and 1 elsewhere, so that D vanishes with ξ. (The paper has
    −χ·ξ₀ > 0 in the first case; at 0 its second case divides by zero.)

    Parameters
    ----------
    xi, look_ahead, chi
        ξ, ξ₀ and χ.
    scaling_factor, threshold_factor
        a and b, between 0 and 1.
    """
    products = [chi[name].dot(look_ahead[name]) for name in chi]
    lengths = [vector.dot(vector) for vector in look_ahead.values()]
    squares = [vector.dot(vector) for vector in xi.values()]
    read = iter(torch.stack([*products, *lengths, *squares]).tolist())  # one device synchronisation
    along, length, square = (sum(islice(read, len(part))) for part in (products, lengths, squares))
    along = -along
    first = 1.0 if along >= 0 else min(1.0, -scaling_factor * length / along)
    second = square if square < threshold_factor**2 else 1.0
    return min(first, second)


def _simultaneous(game: DifferentiableGame, groups: Groups) -> Vectors:
    return {name: game.gradient(name, name) for group in groups for name in group}


def _shaping_terms(
    game: DifferentiableGame, groups: Groups, like: Vectors, respond: Solve
) -> Vectors:
    """Return χ_l = Σ_f [∇_l∇_f L_f] v_f with v_f = ``respond(f, g_lf)``, for each agent."""
    terms = {}
    for leader, followers in followers_of(groups).items():
        products = [(name, name, respond(name, game.gradient(leader, name))) for name in followers]
        empty = torch.zeros_like(like[leader])
        terms[leader] = game.mixed_products(leader, products) if products else empty
    return terms


def _hessian_term(game: DifferentiableGame, leader: str, steps: Mapping[str, Tensor]) -> Tensor:
    """Return Σ_f [∇_l∇_f L_l] step_f."""
    return game.mixed_products(leader, [(leader, name, step) for name, step in steps.items()])
