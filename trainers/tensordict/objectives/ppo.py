"""Objectives of proximal policy optimisation: clipped, and with an adaptive KL penalty."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ratchet.agents.actor_critic import INDEX
from ratchet.algorithms.critic_losses import CriticLossType, critic_loss
from ratchet.algorithms.kl import adapt_kl_beta
from ratchet.algorithms.masks import masked_mean, masked_whiten
from ratchet.algorithms.policy_losses import (
    approximate_kl,
    clip_fraction,
    clipped_policy_loss,
    effective_sample_size,
    kl_penalty_policy_loss,
)
from ratchet.fast.dispatch import fast_path
from ratchet.fast.ppo import clipped_ppo_gradients
from trainers.tensordict.objectives.base import Evaluation, Objective
from trainers.tensordict.objectives.value_estimators import Key

if TYPE_CHECKING:
    from ratchet.parameters.trainers import PpoParameters, RlParameters

_READ = ("sample_log_prob", "advantage", "value_target", "value", "learns")
"""Names of tensor keys."""
_TURNS: tuple[Key, ...] = (("agents", "active"), ("agents", "done"))


class PpoObjective(Objective):
    """Common parts of both variants: critic, entropy, advantage normalisation.

    Minibatches are frames ``[B]``, or rows of steps ``[e, T]`` for recurrent agents. Each agent's
    losses are means over its learning frames of the minibatch; agents are summed.

    Parameters
    ----------
    normalize_advantage
        Whether to whiten advantages per agent and minibatch.
    loss_critic_type
        The distance between values and targets.
    clip_value
        If given, the largest change of a value from the rollout's that affects the loss.
    clip_epsilon
        ε of the clipped objective, and of the logged clip fraction.
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        *,
        entropy_coef: float = 0.001,
        critic_coef: float = 1.0,
        normalize_advantage: bool = True,
        loss_critic_type: CriticLossType = "smooth_l1",
        clip_value: float | None = None,
        clip_epsilon: float = 0.2,
    ) -> None:
        super().__init__(actor, critic)
        self.entropy_coef = entropy_coef
        self.critic_coef = critic_coef
        self.normalize_advantage = normalize_advantage
        self.loss_critic_type: CriticLossType = loss_critic_type
        self.clip_value = clip_value
        self.clip_epsilon = clip_epsilon

    @property
    def in_keys(self) -> tuple[Key, ...]:
        """Inputs of the agents, and entries added by the estimator."""
        added_keys = (self.tensor_keys[name] for name in _READ)
        agents = self.combined_agents
        return (*agents.frame_keys, *_TURNS, *added_keys, *([INDEX] if agents.remembers else []))

    @abstractmethod
    def policy_loss(self, log_ratio: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
        """Compute the policy's loss: ``[B, A]`` each → ``[A]``."""

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the losses and metrics of a minibatch ``[B]``."""
        keys = self.tensor_keys
        now = self.evaluate(tensordict, as_stored=True)
        if tensordict.batch_dims > 1:
            tensordict = tensordict.reshape(-1)
        mask = self.learning_mask(tensordict)
        log_ratio = now.log_prob - tensordict.get(keys["sample_log_prob"])
        advantage = tensordict.get(keys["advantage"])
        if self.normalize_advantage:
            advantage = masked_whiten(advantage, mask)
        policy = self.policy_loss(log_ratio, advantage, mask)
        return self.losses_and_metrics(tensordict, now, log_ratio, mask, policy)

    def losses_and_metrics(
        self,
        tensordict: TensorDictBase,
        now: Evaluation,
        log_ratio: Tensor,
        mask: Tensor,
        policy: Tensor,
    ) -> TensorDict:
        """Add critic, entropy and metrics to the policy's loss ``[A]``.

        ``log_ratio``: log π − log π_old ``[B, A]``; ``mask``: the frames that are learned from.
        """
        keys = self.tensor_keys
        critic = critic_loss(
            now.value,
            tensordict.get(keys["value_target"]),
            mask,
            kind=self.loss_critic_type,
            old_value=tensordict.get(keys["value"]),
            clip_value=self.clip_value,
        )
        entropy = masked_mean(now.entropy, mask, 0)
        losses = {
            "loss_objective": policy.sum(),
            "loss_critic": self.critic_coef * critic.sum(),
            "loss_entropy": -self.entropy_coef * entropy.sum(),
        }
        metrics = {"policy_loss": policy, "critic_loss": critic, "entropy": entropy}
        metrics = {name: value.detach() for name, value in metrics.items()}
        return TensorDict(
            {**losses, **metrics, **self.metrics(log_ratio.detach(), mask)}, batch_size=[]
        )

    @torch.no_grad()
    def metrics(self, log_ratio: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Measure the policy's change since the rollout: ``[B, A]`` → ``[A]`` each."""
        return {
            "kl": approximate_kl(log_ratio, mask),
            "clip_fraction": clip_fraction(log_ratio, mask, clip_epsilon=self.clip_epsilon),
            "effective_sample_size": effective_sample_size(log_ratio, mask),
        }


def ppo_options(ppo: PpoParameters, rl: RlParameters) -> dict[str, Any]:
    """Return the options of every :class:`PpoObjective` from an experiment's parameters."""
    clip_value = rl.clip_value
    if clip_value is True:
        clip_value = ppo.clip_epsilon
    return {
        "entropy_coef": ppo.entropy_eps,
        "critic_coef": ppo.critic_coef,
        "normalize_advantage": ppo.normalize_advantage,
        "loss_critic_type": rl.loss_critic_type,
        "clip_value": None if clip_value is False else float(clip_value),
        "clip_epsilon": ppo.clip_epsilon,
    }


class ClippedPpoObjective(PpoObjective):
    """PPO with a clipped ratio."""

    can_be_captured = True

    def policy_loss(self, log_ratio: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
        """Compute max(−ρA, −clip(ρ)A): ``[B, A]`` each → ``[A]``."""
        return clipped_policy_loss(log_ratio, advantage, mask, clip_epsilon=self.clip_epsilon)

    compute_gradients = fast_path(clipped_ppo_gradients)(PpoObjective.compute_gradients)


class KlPenaltyPpoObjective(PpoObjective):
    """PPO with a penalty on the KL divergence, whose weight adapts after each iteration.

    Each agent has a separate weight.

    Parameters
    ----------
    kl_target
        The target divergence.
    kl_beta
        The initial weight.
    increment, decrement
        Factors of the weight if the divergence is too large or too small.
    **more
        As for :class:`PpoObjective`.
    """

    can_be_captured = True
    kl_beta: Tensor

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        *,
        kl_target: float = 0.01,
        kl_beta: float = 1.0,
        increment: float = 2.0,
        decrement: float = 0.5,
        **more: object,
    ) -> None:
        super().__init__(actor, critic, **more)  # type: ignore[arg-type] # checked there
        self.kl_target = kl_target
        self.increment = increment
        self.decrement = decrement
        num_agents = len(self.combined_agents.agent_names)
        self.register_buffer("kl_beta", torch.full((num_agents,), float(kl_beta)))

    def policy_loss(self, log_ratio: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
        """Compute −ρA + β·KL: ``[B, A]`` each → ``[A]``."""
        return kl_penalty_policy_loss(log_ratio, advantage, mask, beta=self.kl_beta)[0]

    def metrics(self, log_ratio: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Add the weights to the base class's metrics."""
        return {**super().metrics(log_ratio, mask), "kl_beta": self.kl_beta.clone()}

    def end_iteration(self, mean_losses: TensorDictBase) -> None:
        """Adapt the weights of learning agents to their mean divergence."""
        adapted = adapt_kl_beta(
            self.kl_beta,
            mean_losses.get("kl").to(self.kl_beta),
            target=self.kl_target,
            increment=self.increment,
            decrement=self.decrement,
        )
        names = self.combined_agents.agent_names
        learned = self.learning_agents
        learning = [learned is None or name in learned for name in names]
        mask = torch.tensor(learning, device=self.kl_beta.device)
        self.kl_beta.copy_(torch.where(mask, adapted, self.kl_beta))


__all__ = [
    "ClippedPpoObjective",
    "Evaluation",
    "KlPenaltyPpoObjective",
    "PpoObjective",
    "ppo_options",
]
