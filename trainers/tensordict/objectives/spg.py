"""Objective of the trainer ``spg``: policy losses whose gradients are replaced by shaped ones.

This module prepares a minibatch for the algorithms in
:mod:`ratchet.algorithms.opponent_shaping`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ratchet.algorithms.inverse_hessian import conjugate_gradient, neumann_series, nystrom
from ratchet.algorithms.joint_advantages import normalize_joint_advantages
from ratchet.algorithms.masks import masked_whiten
from ratchet.algorithms.opponent_shaping import (
    ShapedUpdate,
    lola,
    stable_opponent_shaping,
    stackelberg_policy_gradient,
)
from ratchet.algorithms.policy_losses import clipped_policy_loss, reinforce_loss
from ratchet.algorithms.sampled_game import (
    Loss,
    Player,
    SampledGame,
    clipped_slope,
    policy_slope,
)
from ratchet.fast.dispatch import only_plain_operations
from trainers.tensordict.objectives.base import Evaluation
from trainers.tensordict.objectives.joint_estimator import EPISODE, JOINT_ADVANTAGE, JOINT_KNOWN
from trainers.tensordict.objectives.ppo import PpoObjective
from trainers.tensordict.objectives.value_estimators import Key, acting_mask

if TYPE_CHECKING:
    from ratchet.parameters.trainers import SpgParameters


@dataclass(frozen=True)
class ShapingBatch:
    """All agents' advantages for all agents' actions in some episodes.

    Attributes
    ----------
    advantage
        f32 [e, T, A], 0 where unknown.
    learned
        bool [e, T, A]: the frames that are learned from.
    acting
        bool [e, T, A].
    old_log_prob
        f32 [e, T, A], at the time of sampling.
    episode
        i64 [e, T]: the index of the frame's episode in its row.
    """

    advantage: Tensor
    learned: Tensor
    acting: Tensor
    old_log_prob: Tensor
    episode: Tensor

    def take(self, rows: Tensor) -> ShapingBatch:
        """Return the part of some environments, i64 [k]."""
        return ShapingBatch(
            **{field.name: getattr(self, field.name)[rows] for field in fields(self)}
        )

    def game(
        self,
        players: Mapping[str, Player],
        agent_indices: Mapping[str, int],
        clip_epsilon: float | None,
    ) -> SampledGame:
        """Build the game of some players with their current policies.

        ``agent_indices``: agent → index in agent dimensions; ``clip_epsilon`` is ε of PPO's
        clipped loss, None for the plain policy gradient.
        """
        count = self.learned.sum((0, 1)).clamp(min=1)
        weight = -self.advantage / count

        def slope(loss: str, agent: str) -> Tensor:
            acting = self.acting[..., agent_indices[agent]]
            if clip_epsilon is None:
                return policy_slope(acting, weight)
            return clipped_slope(
                players[agent].log_prob.detach() - self.old_log_prob[..., agent_indices[agent]],
                self.advantage[..., agent_indices[loss]],
                acting,
                clip_epsilon=clip_epsilon,
            )

        losses = {
            name: Loss(
                weight[..., agent_indices[name]], {other: slope(name, other) for other in players}
            )
            for name in players
        }
        return SampledGame(players, losses, self.episode)

    def rows_with(self, agents: Sequence[int], share: int) -> Tensor:
        """Choose one in ``share`` environments, first those in which some of the agents act."""
        acts = self.acting[..., list(agents)].flatten(1).any(1)
        order = torch.argsort(acts.to(torch.int8), descending=True, stable=True)
        return order[: -(-len(order) // share)]


Groups = Sequence[Sequence[str]]
CLIPPED = ("pspg", "pola", "psos")
"""The variants whose policy loss is that of PPO."""
CURVATURE_SHARE = 4
"""Hessians are computed on one of this number of a minibatch's environments."""


class SpgObjective(PpoObjective):
    """Opponent shaping on minibatches of complete episodes, ``[e, T]``.

    A policy's gradient is replaced by the shaped direction; critic and entropy are as in PPO.
    Agents that do not learn in an iteration neither shape nor are shaped.

    Parameters
    ----------
    groups
        The Stackelberg sequence.
    actor_params
        Each agent's parameters that its policy depends on.
    **more
        As for :class:`PpoObjective`.

    Attributes
    ----------
    rates
        η: each parameter's learning rate by its ``id``, set before an iteration.
    generator
        For the random directions of Nyström's approximation, set before an iteration.
    """

    can_be_compiled: ClassVar[bool] = False

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        *,
        parameters: SpgParameters,
        groups: Groups,
        actor_params: Mapping[str, Sequence[nn.Parameter]],
        **more: Any,  # noqa: ANN401 -- checked there
    ) -> None:
        super().__init__(actor, critic, **more)
        self.parameters_of_spg = parameters
        self.groups = groups
        self.actor_params = {name: tuple(params) for name, params in actor_params.items()}
        self.agent_index = {name: i for i, name in enumerate(self.combined_agents.agent_names)}
        self.rates: dict[int, float] = {}
        self.generator: torch.Generator | None = None

    @property
    def in_keys(self) -> tuple[Key, ...]:
        """PPO's inputs, and the estimates for other agents' actions."""
        return (*super().in_keys, JOINT_ADVANTAGE, JOINT_KNOWN, EPISODE)

    @property
    def clips(self) -> bool:
        """Whether the policies' losses are clipped as in PPO."""
        return self.parameters_of_spg.variant in CLIPPED

    def policy_loss(self, log_ratio: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
        """Compute the loss whose gradient is ξ: ``[B, A]`` each → ``[A]``."""
        if self.clips:
            return clipped_policy_loss(log_ratio, advantage, mask, clip_epsilon=self.clip_epsilon)
        return reinforce_loss(log_ratio, advantage, mask)

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the losses and metrics of a minibatch ``[e, T]``."""
        frames = tensordict.reshape(-1)
        mask = self.learning_mask(frames)
        groups = self._present(frames)
        now = self._evaluate_groups(frames, groups)
        log_ratio = now.log_prob - frames.get(self.tensor_keys["sample_log_prob"])
        advantage = frames.get(self.tensor_keys["advantage"])
        if self.normalize_advantage:
            advantage = masked_whiten(advantage, mask)
        policy = self.policy_loss(log_ratio.detach(), advantage, mask)
        losses = self.losses_and_metrics(frames, now, log_ratio, mask, policy)
        if groups:
            batch = self._batch(tensordict, mask)
            game = self._game(batch, now.log_prob, groups)
            update = self._shape(tensordict, batch, game, groups)
            losses["loss_objective"] = policy.sum() + _carry(game, update.direction)
            losses.update(self._shaping_metrics(update))
        return losses

    def _present(self, frames: TensorDictBase) -> Groups:
        """Return the sequence of agents that learn and act in the minibatch."""
        names, acts = self.combined_agents.agent_names, acting_mask(frames).any(0).tolist()
        learning = names if self.learning_agents is None else self.learning_agents
        here = {
            name
            for name, there in zip(names, acts, strict=True)
            if there and name in learning and self.actor_params.get(name)
        }
        groups = (tuple(name for name in group if name in here) for group in self.groups)
        return tuple(group for group in groups if group)

    def _evaluate_groups(self, frames: TensorDictBase, groups: Groups) -> Evaluation:
        """Evaluate frames ``[B]``; followers with twice differentiable operations."""
        followers = _followers(groups)
        learning = self.learning_agents
        everybody = self.combined_agents.agent_names if learning is None else learning
        score = self.combined_agents.score_remembered
        leaders = [name for name in everybody if name not in followers]
        first = score(frames, agents=leaders)
        if not followers:
            return Evaluation(*first)
        with only_plain_operations():
            of_followers = score(frames, agents=followers)
        return Evaluation(*(one + other for one, other in zip(first, of_followers, strict=True)))

    def _shape(
        self, rows: TensorDictBase, batch: ShapingBatch, game: SampledGame, groups: Groups
    ) -> ShapedUpdate:
        """Compute the update of the agents in ``groups``."""
        chosen = self.parameters_of_spg
        if chosen.variant in ("spg", "pspg"):
            curved = self._curvature(rows, batch, groups) if len(groups) > 1 else game
            return stackelberg_policy_gradient(game, groups, partial(self._solve, curved))
        rates = {name: self._rates_of(name) for name in _followers(groups)}
        if chosen.variant in ("lola", "pola"):
            return lola(game, groups, rates, additional_term=chosen.additional_lola_term)
        return stable_opponent_shaping(
            game,
            groups,
            rates,
            scaling_factor=chosen.sos_scaling_factor,
            threshold_factor=chosen.sos_threshold_factor,
        )

    def _batch(self, rows: TensorDictBase, mask: Tensor) -> ShapingBatch:
        shape = (*rows.batch_size, -1)
        joint, known = rows.get(JOINT_ADVANTAGE), rows.get(JOINT_KNOWN)
        if self.normalize_advantage:
            flat = (tensor.flatten(0, 1) for tensor in (joint, known))
            joint = normalize_joint_advantages(next(flat), mask, next(flat)).view(shape)
        else:
            joint = torch.where(known, joint, 0.0)
        return ShapingBatch(
            advantage=joint,
            learned=mask.view(shape),
            acting=acting_mask(rows),
            old_log_prob=rows.get(self.tensor_keys["sample_log_prob"]),
            episode=rows.get(EPISODE),
        )

    def _game(self, batch: ShapingBatch, log_prob: Tensor, groups: Groups) -> SampledGame:
        """Build the game of the agents in ``groups``; ``log_prob`` is ``[B, A]``.

        The parameters of players that follow no other are their log-probabilities: their updates
        are linear in their inputs, and pass through the networks in one backward pass together with
        critic and entropy. Only stable opponent shaping compares lengths of updates, which must be
        those of the parameters.
        """
        by_step = log_prob.view(batch.advantage.shape)
        shaped = _followers(self.groups)
        compared = self.parameters_of_spg.variant in ("sos", "psos")
        players = {}
        for name in (name for group in groups for name in group):
            agent_log_prob = by_step[..., self.agent_index[name]]
            in_parameters = compared or name in shaped
            params = self.actor_params[name] if in_parameters else (agent_log_prob,)
            players[name] = Player(params, agent_log_prob, name in shaped)
        return batch.game(players, self.agent_index, self.clip_epsilon if self.clips else None)

    def _curvature(self, rows: TensorDictBase, batch: ShapingBatch, groups: Groups) -> SampledGame:
        """Build the game of the followers only, on some of the episodes, for their Hessians.

        A Hessian is applied several times for each gradient; using fewer samples for it costs less
        and leaves it unbiased (Byrd et al. 2011).
        """
        followers = _followers(groups)
        indices = [self.agent_index[name] for name in followers]
        episode_rows = batch.rows_with(indices, CURVATURE_SHARE)
        with only_plain_operations():
            score = self.combined_agents.score_remembered
            log_prob = score(rows[episode_rows].reshape(-1), agents=followers)[0]
        return self._game(batch.take(episode_rows), log_prob, [followers])

    def _solve(self, game: SampledGame, agent: str, vector: Tensor) -> Tensor:
        """Apply the approximate inverse of an agent's Hessian."""
        products: Callable[[Tensor], Tensor] = partial(game.hessian_products, agent)
        chosen = self.parameters_of_spg
        if chosen.ihvp_variant == "nystrom":
            return nystrom(
                products,
                vector,
                rank=chosen.ihvp_rank,
                rho=chosen.ihvp_rho,
                generator=self.generator,
            )
        solve = conjugate_gradient if chosen.ihvp_variant == "conj_grad" else neumann_series
        return solve(products, vector, num_iterations=chosen.ihvp_num_iterations)

    def _rates_of(self, agent: str) -> Tensor:
        """Return η of each of an agent's actor parameters, ``[P]``."""
        params = self.actor_params[agent]
        first = params[0]
        known = [self.rates[id(param)] for param in params]
        rates = torch.tensor(known, dtype=first.dtype, device=first.device)
        sizes = torch.tensor([param.numel() for param in params], device=rates.device)
        return rates.repeat_interleave(sizes)

    def _shaping_metrics(self, update: ShapedUpdate) -> dict[str, Tensor]:
        """Return the lengths of χ and h relative to ξ, ``[A]`` each, and p."""
        xi = {name: vector.norm() for name, vector in update.simultaneous.items()}
        none = next(iter(xi.values())).new_zeros(())

        def share(vectors: Mapping[str, Tensor]) -> Tensor:
            ratios = {name: vectors[name].norm() / (xi[name] + 1e-12) for name in vectors}
            return torch.stack([ratios.get(name, none) for name in self.agent_index])

        return {
            "shaping_share": share(update.shaping),
            "hessian_term_share": share(update.hessian_term),
            "shaping_weight": none.new_tensor(update.shaping_weight),
        }


def _carry(game: SampledGame, direction: Mapping[str, Tensor]) -> Tensor:
    """Return a scalar of value 0 whose gradient is the direction."""
    pieces = [
        torch.cat([param.flatten() for param in game.players[name].params]).dot(vector)
        for name, vector in direction.items()
    ]
    total = torch.stack(pieces).sum()
    return total - total.detach()


def _followers(groups: Groups) -> list[str]:
    """Return the shaped agents: all except those in the first group."""
    return [name for group in groups[1:] for name in group]
