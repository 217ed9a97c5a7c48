"""A game whose losses are estimated from sampled episodes: second-order policy gradients.

Agent i's loss is the Loaded DiCE objective (Farquhar et al. 2019, after Foerster et al. 2018)
L_i = −1/n_i Σ_t A_i,t (M_≤t − M_<t), M_≤t = Π_{u≤t in the episode} Π_j m_j,u, where m_j,u has the
value 1 and the derivatives of agent j's policy π_j at step u, or of PPO's clipped ratio. Its first
derivative is the usual policy gradient. With s_j,u = ∇ log π_j the mixed second one is

    [∇_l∇_f L_i] v = −1/n_i Σ_{u,w in one episode} A_i,max(u,w) s_l,u (s_f,w · v),

which in games of one step is −mean_k A_i,k s_l,k (s_f,k · v). (Frame by frame it would
vanish wherever leader and follower alternate.) So a product is a Jacobian-vector product of
the follower's log-probabilities, a small matrix product for each episode, and a backward pass
through the leader's. Shape letters: E environments, T steps, P parameters of an agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ratchet.algorithms.kl import bounded_log_ratio
from ratchet.algorithms.opponent_shaping import Product


class Player(NamedTuple):
    """One agent's policy."""

    params: Sequence[Tensor]
    """Leaf tensors of the graph of ``log_prob``."""
    log_prob: Tensor
    """``[E, T]``: of the actions taken, with a graph; constant where the agent does not act."""
    is_shaped: bool = True
    """Whether second derivatives are required, and the graph is of ordinary operations."""


class Loss(NamedTuple):
    """One agent's loss, as weights of all agents' scores."""

    weight: Tensor
    """−A_i/n_i, ``[E, T]``; 0 where the advantage is unknown."""
    slopes: Mapping[str, Tensor]
    """dm_j/d log π_j of each agent j, ``[E, T]``; 0 where j does not act."""


def policy_slope(acting: Tensor, like: Tensor) -> Tensor:
    """Return dm/d log π of the plain policy gradient: 1 where the agent acts. ``[E, T]``."""
    return acting.to(like.dtype)


def clipped_slope(
    log_ratio: Tensor, advantage: Tensor, acting: Tensor, *, clip_epsilon: float
) -> Tensor:
    """Return dm/d log π of PPO's clipped ratio: ρ where it is not clipped, else 0.

    The derivative of max(−ρA, −clip(ρ, 1−ε, 1+ε)A) is then −A times it.

    Parameters
    ----------
    log_ratio
        ``[E, T]``: log ρ of the action taken.
    advantage
        ``[E, T]``, of the agent whose loss it is.
    acting
        Boolean ``[E, T]``.
    clip_epsilon
        ε.
    """
    masked = torch.where(acting, log_ratio, 0.0)
    bounded = bounded_log_ratio(masked)
    ratio = bounded.exp()
    above = (advantage > 0) & (ratio > 1 + clip_epsilon)
    below = (advantage < 0) & (ratio < 1 - clip_epsilon)
    return torch.where(acting & ~above & ~below & (bounded == masked), ratio, 0.0)


def pair_weights(weight: Tensor, episode: Tensor) -> Tensor:
    """Weigh pairs of steps by the later one's weight: symmetric ``[E, T, T]``, 0 across episodes.

    Parameters
    ----------
    weight
        ``[E, T]``.
    episode
        int64 ``[E, T]``: differs between the episodes of a row.
    """
    steps = torch.arange(weight.shape[1], device=weight.device)
    later = torch.maximum(steps.unsqueeze(0), steps.unsqueeze(1))
    together = episode.unsqueeze(2) == episode.unsqueeze(1)
    return torch.where(together, weight[:, later], 0.0)


class SampledGame:
    """Implements :class:`~ratchet.algorithms.opponent_shaping.DifferentiableGame` by sampling.

    ``episode`` int64 ``[E, T]`` differs between the episodes of a row.
    """

    def __init__(
        self, players: Mapping[str, Player], losses: Mapping[str, Loss], episode: Tensor
    ) -> None:
        self.players = players
        self.losses = losses
        self._pairs = {name: pair_weights(loss.weight, episode) for name, loss in losses.items()}
        self._linear: dict[str, tuple[Tensor, tuple[Tensor, ...]]] = {}

    def gradient(self, loss: str, agent: str) -> Tensor:
        """Return ∇_agent L_loss: [P]."""
        if loss == agent and self.players[agent].is_shaped:
            return _flat(self._linearised(agent)[1])  # required for products as well
        return self._backward(agent, self._first(loss, agent))

    def mixed_products(self, leader: str, products: Iterable[Product]) -> Tensor:
        """Sum [∇_leader∇_f L_i] v over triples (i, f, v): [P_leader]."""
        cotangent = torch.zeros_like(self.players[leader].log_prob)
        for loss, follower, vector in products:
            slopes = self.losses[loss].slopes
            moved = slopes[follower] * self._forward(follower, vector)
            cotangent = cotangent + slopes[leader] * _apply(self._pairs[loss], moved)
        return self._backward(leader, cotangent.detach())

    def hessian_products(self, agent: str, vectors: Tensor) -> Tensor:
        """Apply ∇²L_agent of the agent's own parameters to the rows of [k, P]."""
        _, gradient = self._linearised(agent)
        params = self.players[agent].params
        if len(vectors) == 1:
            return _flat(_derive(gradient, params, _split(vectors[0], params))).unsqueeze(0)
        return _flat_rows(_derive(gradient, params, _split_rows(vectors, params), batched=True))

    def _first(self, loss: str, agent: str) -> Tensor:
        """Return ∂L_loss/∂ log π_agent: ``[E, T]``."""
        return self.losses[loss].weight * self.losses[loss].slopes[agent]

    def _backward(self, agent: str, cotangent: Tensor) -> Tensor:
        """Apply the transposed Jacobian of the log-probabilities: ``[E, T]`` → [P]."""
        player = self.players[agent]
        return _flat(_derive((player.log_prob,), player.params, (cotangent,)))

    def _forward(self, agent: str, vector: Tensor) -> Tensor:
        """Apply the Jacobian of the log-probabilities: [P] → ``[E, T]``."""
        cotangent, gradient = self._linearised(agent)
        (derivative,) = _derive(gradient, (cotangent,), _split(vector, self.players[agent].params))
        return derivative

    def _linearised(self, agent: str) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return ∂L/∂ log π as a leaf, and L's gradient as a function of it and of the parameters.

        The gradient's derivative by the leaf is the Jacobian of the log-probabilities, that by
        the parameters is the Hessian: one graph serves both.
        """
        if agent not in self._linear:
            player = self.players[agent]
            leaf = self._first(agent, agent).detach().requires_grad_()
            moved = player.log_prob - player.log_prob.detach()
            cotangent = leaf + self._second(agent, moved)
            gradient = _derive((player.log_prob,), player.params, (cotangent,), create_graph=True)
            self._linear[agent] = (leaf, gradient)
        return self._linear[agent]

    def _second(self, agent: str, values: Tensor) -> Tensor:
        """Apply ∂²L/∂(log π)² of the agent's own loss: ``[E, T]`` → ``[E, T]``."""
        slope, pairs = self.losses[agent].slopes[agent], self._pairs[agent]
        # For one action m'' = m', for any slope.
        apart = pairs - torch.diag_embed(pairs.diagonal(dim1=1, dim2=2))
        return slope * _apply(apart, slope * values) + self._first(agent, agent) * values


def _apply(pairs: Tensor, values: Tensor) -> Tensor:
    """Multiply ``[E, T, T]`` with ``[E, T]``."""
    return torch.bmm(pairs, values.unsqueeze(2)).squeeze(2)


def _derive(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    *,
    create_graph: bool = False,
    batched: bool = False,
) -> tuple[Tensor, ...]:
    """Differentiate outputs by inputs, 0 for an input without influence; the graph is retained.

    With ``batched``, cotangents and results have an additional first dimension.
    """
    size = cotangents[0].shape[:1] if batched else ()
    pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
    if not pairs:
        return tuple(tensor.new_zeros((*size, *tensor.shape)) for tensor in inputs)
    gradients = torch.autograd.grad(
        [output for output, _ in pairs],
        inputs,
        [cotangent for _, cotangent in pairs],
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
        is_grads_batched=batched,
    )
    return tuple(
        tensor.new_zeros((*size, *tensor.shape)) if gradient is None else gradient
        for tensor, gradient in zip(inputs, gradients, strict=True)
    )


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).detach()


def _flat_rows(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], dim=1).detach()


def _split(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat vector into tensors of given shapes."""
    return [rows.squeeze(0) for rows in _split_rows(vector.unsqueeze(0), like)]


def _split_rows(vectors: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split the rows of [k, P] into tensors of given shapes, k of each."""
    pieces = torch.split(vectors, [tensor.numel() for tensor in like], dim=1)
    return [
        piece.reshape(len(vectors), *tensor.shape)
        for piece, tensor in zip(pieces, like, strict=True)
    ]
