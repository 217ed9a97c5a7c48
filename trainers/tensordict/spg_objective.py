"""The objective of the trainer ``spg``: policy losses whose gradients are replaced by shaped ones.

Everything about a minibatch that the algorithms need is made here; what they compute from it is in
:mod:`trainers.algorithms.opponent_shaping`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from trainers.algorithms.inverse_hessian import conjugate_gradient, neumann_series, nystrom
from trainers.algorithms.joint_advantages import normalize_joint_advantages
from trainers.algorithms.masks import masked_whiten
from trainers.algorithms.opponent_shaping import (
    ShapedUpdate,
    lola,
    stable_opponent_shaping,
    stackelberg_policy_gradient,
)
from trainers.algorithms.ppo_losses import clipped_policy_loss
from trainers.algorithms.reinforce import reinforce_loss
from trainers.algorithms.sampled_game import (
    Loss,
    Player,
    SampledGame,
    clipped_slope,
    policy_slope,
)
from trainers.tensordict.joint_estimator import EPISODE, JOINT_ADVANTAGE, JOINT_KNOWN
from trainers.tensordict.ppo_objectives import PpoObjective
from trainers.tensordict.value_estimators import Key, acting_mask

if TYPE_CHECKING:
    from ratchet.parameters.trainers import SpgParameters

Groups = Sequence[Sequence[str]]
CLIPPED = ("pspg", "pola", "psos")
"""The variants whose policy loss is that of PPO."""


class SpgObjective(PpoObjective):
    """Opponent shaping on minibatches of whole episodes, ``[e, T]``.

    A policy's gradient is replaced by the shaped direction; critic and entropy are as in PPO.
    Agents that do not learn in an iteration neither shape nor are shaped in it.

    Parameters
    ----------
    actor, critic
        The policy and value operators.
    parameters
        The section ``spg``.
    groups
        The Stackelberg sequence.
    actor_params
        Each agent's parameters that its policy depends on.
    **more
        As for :class:`PpoObjective`.

    Attributes
    ----------
    rates
        Each parameter's learning rate by its ``id``, set before an iteration: η.
    generator
        Of the directions that Nyström's approximation draws, likewise.
    """

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
        self.rates: dict[int, float] = {}
        self.generator: torch.Generator | None = None

    @property
    def in_keys(self) -> tuple[Key, ...]:
        """What PPO reads, and what is known of others' actions."""
        return (*super().in_keys, JOINT_ADVANTAGE, JOINT_KNOWN, EPISODE)

    @property
    def clips(self) -> bool:
        """Whether the policies' losses are PPO's clipped ones."""
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
        now = self.evaluate(frames)
        log_ratio = now.log_prob - frames.get(self.tensor_keys["sample_log_prob"])
        advantage = frames.get(self.tensor_keys["advantage"])
        if self.normalize_advantage:
            advantage = masked_whiten(advantage, mask)
        policy = self.policy_loss(log_ratio.detach(), advantage, mask)
        losses = self.losses_and_metrics(frames, now, log_ratio, mask, policy)
        present = self._present(frames)
        if present:
            game = self._game(tensordict, now.log_prob, mask, present)
            update = self._shape(game, present)
            losses["loss_objective"] = policy.sum() + self._carry(update.direction)
            losses.update(self._shaping_metrics(update))
        return losses

    def _present(self, frames: TensorDictBase) -> tuple[tuple[str, ...], ...]:
        """Give the sequence of those who learn and act in the minibatch."""
        names, acts = self.combined_agents.agent_names, acting_mask(frames).any(0).tolist()
        learning = names if self.learning_agents is None else self.learning_agents
        here = {
            name
            for name, there in zip(names, acts, strict=True)
            if there and name in learning and self.actor_params.get(name)
        }
        groups = (tuple(name for name in group if name in here) for group in self.groups)
        return tuple(group for group in groups if group)

    def _game(
        self, rows: TensorDictBase, log_prob: Tensor, mask: Tensor, groups: Groups
    ) -> SampledGame:
        """Make the game of those in ``groups``; ``log_prob`` and ``mask`` are ``[B, A]``."""
        shape = (*rows.batch_size, -1)
        index = {name: i for i, name in enumerate(self.combined_agents.agent_names)}
        joint = self._joint_advantage(rows, mask)
        weight = (-joint / mask.sum(0).clamp(min=1)).view(shape)
        acting, joint, by_step = acting_mask(rows), joint.view(shape), log_prob.view(shape)
        log_ratio = by_step.detach() - rows.get(self.tensor_keys["sample_log_prob"])
        present = {name: index[name] for group in groups for name in group}

        def slope(loss: int, agent: int) -> Tensor:
            if not self.clips:
                return policy_slope(acting[..., agent], joint)
            return clipped_slope(
                log_ratio[..., agent],
                joint[..., loss],
                acting[..., agent],
                clip_epsilon=self.clip_epsilon,
            )

        players = {n: Player(self.actor_params[n], by_step[..., i]) for n, i in present.items()}
        losses = {
            name: Loss(weight[..., i], {other: slope(i, j) for other, j in present.items()})
            for name, i in present.items()
        }
        return SampledGame(players, losses, rows.get(EPISODE))

    def _joint_advantage(self, rows: TensorDictBase, mask: Tensor) -> Tensor:
        """Give ``[B, A]``: on own frames as PPO has it, 0 where nothing is known."""
        frames = rows.select(JOINT_ADVANTAGE, JOINT_KNOWN).reshape(-1)
        joint, known = frames.get(JOINT_ADVANTAGE), frames.get(JOINT_KNOWN)
        if self.normalize_advantage:
            return normalize_joint_advantages(joint, mask, known)
        return torch.where(known, joint, 0.0)

    def _shape(self, game: SampledGame, groups: Groups) -> ShapedUpdate:
        chosen = self.parameters_of_spg
        if chosen.variant in ("spg", "pspg"):
            return stackelberg_policy_gradient(game, groups, partial(self._solve, game))
        rates = {name: self._rates_of(name) for group in groups[1:] for name in group}
        if chosen.variant in ("lola", "pola"):
            return lola(game, groups, rates, additional_term=chosen.additional_lola_term)
        return stable_opponent_shaping(
            game,
            groups,
            rates,
            scaling_factor=chosen.sos_scaling_factor,
            threshold_factor=chosen.sos_threshold_factor,
        )

    def _solve(self, game: SampledGame, agent: str, vector: Tensor) -> Tensor:
        """Apply the inverse of an agent's Hessian, roughly."""
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
        """Give η of each of an agent's actor parameters, ``[P]``."""
        params = self.actor_params[agent]
        rates = params[0].new_tensor([self.rates[id(param)] for param in params])
        sizes = torch.tensor([param.numel() for param in params], device=rates.device)
        return rates.repeat_interleave(sizes)

    def _carry(self, direction: Mapping[str, Tensor]) -> Tensor:
        """Give a scalar of value 0 whose gradient is the direction."""
        pieces = [
            torch.cat([param.flatten() for param in self.actor_params[name]]).dot(vector)
            for name, vector in direction.items()
        ]
        total = torch.stack(pieces).sum()
        return total - total.detach()

    def _shaping_metrics(self, update: ShapedUpdate) -> dict[str, Tensor]:
        """Give the lengths of what updates are made of, ``[A]`` each, and p."""
        like = next(iter(update.direction.values()))

        def lengths(vectors: Mapping[str, Tensor]) -> Tensor:
            names = self.combined_agents.agent_names
            found = [vectors[n].norm() if n in vectors else like.new_zeros(()) for n in names]
            return torch.stack(found)

        return {
            "own_gradient_norm": lengths(update.simultaneous),
            "shaping_norm": lengths(update.shaping),
            "hessian_term_norm": lengths(update.hessian_term),
            "shaped_norm": lengths(update.direction),
            "shaping_weight": like.new_tensor(update.shaping_weight),
        }
