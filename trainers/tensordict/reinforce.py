"""REINFORCE, with rewards to go or with advantages from a critic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from ratchet.algorithms.advantages import reward_to_go
from ratchet.algorithms.critic_losses import CriticLossType, critic_loss
from ratchet.algorithms.masks import masked_mean
from ratchet.algorithms.policy_losses import reinforce_loss
from ratchet.errors import ParameterError
from ratchet.parameters.purposes import Purpose
from ratchet.protocols.registry import build_protocol_handler
from trainers.named import register_trainer
from trainers.stage_parameters import StagePurposes
from trainers.staged import STAGE
from trainers.tensordict.objectives.base import Objective
from trainers.tensordict.objectives.joint_estimator import number_episodes
from trainers.tensordict.objectives.value_estimators import (
    Key,
    MaskedGae,
    acting_mask,
    episode_ends,
)
from trainers.tensordict.rl import TensorDictRlTrainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

_TURNS: tuple[Key, ...] = (("agents", "active"), ("agents", "done"))


class RewardToGoEstimator(MaskedGae):
    """Uses rewards to go instead of advantages; values are ignored.

    ``horizon`` is the maximum length of an episode in steps. The loss includes an
    episode only if one of maximum length would fit in the batch from its start: including every
    episode that ended would favour short ones.
    """

    def __init__(self, *, gamma: float, keys: dict[str, Key], horizon: int) -> None:
        super().__init__(gamma=gamma, lmbda=1.0, keys=keys)
        self.horizon = horizon

    @torch.no_grad()
    def forward(self, rollouts: TensorDictBase, **unused: object) -> TensorDictBase:
        """Add ``advantage``, which is the reward to go, and ``learns`` to rollouts ``[E, T]``."""
        reward = rollouts.get(("next", "agents", "reward"))
        ends = episode_ends(rollouts, reward.shape[-1])
        rollouts.set(self.keys["advantage"], reward_to_go(reward, ends, gamma=self.gamma))
        _, step = number_episodes(rollouts)
        start = torch.arange(step.shape[1], device=step.device) - step
        has_time = start + self.horizon <= step.shape[1]
        rollouts.set(self.keys["learns"], acting_mask(rollouts) & has_time.unsqueeze(-1))
        return rollouts


class ReinforceLoss(Objective):
    """−log π·w, plus the critic's loss if there is a critic.

    Each agent's losses are means over its learning frames of the minibatch; agents are summed.
    ``loss_critic_type`` and ``clip_value`` as for
    :class:`trainers.tensordict.objectives.ppo.PpoObjective`.
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module | None = None,
        *,
        loss_critic_type: CriticLossType = "smooth_l1",
        clip_value: float | None = None,
    ) -> None:
        super().__init__(actor, critic)
        self.loss_critic_type: CriticLossType = loss_critic_type
        self.clip_value = clip_value

    @property
    def in_keys(self) -> tuple[Key, ...]:
        """Inputs of the agents, and entries added by the estimator."""
        names = ["advantage", "learns"]
        if self.critic_network is not None:
            names += ["value", "value_target"]
        added_keys = (self.tensor_keys[name] for name in names)
        return (*self.combined_agents.frame_keys, *_TURNS, *added_keys)

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the losses and metrics of a minibatch ``[B]``."""
        keys = self.tensor_keys
        mask = self.learning_mask(tensordict)
        now = self.evaluate(tensordict)
        policy = reinforce_loss(now.log_prob, tensordict.get(keys["advantage"]), mask)
        losses = {"loss_objective": policy.sum()}
        metrics = {"policy_loss": policy, "entropy": masked_mean(now.entropy, mask, 0)}
        if self.critic_network is not None:
            metrics["critic_loss"] = critic_loss(
                now.value,
                tensordict.get(keys["value_target"]),
                mask,
                kind=self.loss_critic_type,
                old_value=tensordict.get(keys["value"]),
                clip_value=self.clip_value,
            )
            losses["loss_critic"] = metrics["critic_loss"].sum()
        metrics = {name: value.detach() for name, value in metrics.items()}
        return TensorDict({**losses, **metrics}, batch_size=[])


@register_trainer("reinforce")
class ReinforceTrainer(TensorDictRlTrainer):
    """REINFORCE, with a critic if ``reinforce.use_advantage_and_critic``."""

    def build_loss(
        self,
    ) -> tuple[Objective, MaskedGae | None]:
        """Create the loss, and the estimator of rewards to go or advantages."""
        rl = self.hyper_params.rl
        if self.hyper_params.reinforce.use_advantage_and_critic:
            loss_module = ReinforceLoss(
                self.policy_operator,
                self.value_operator,
                loss_critic_type=rl.loss_critic_type,
                clip_value=None if rl.clip_value is False else float(rl.clip_value),
            )
            loss_module.make_value_estimator("GAE", gamma=rl.gamma, lmbda=rl.lmbda)
            return loss_module, loss_module.value_estimator
        loss_module = ReinforceLoss(self.policy_operator)
        return loss_module, RewardToGoEstimator(
            gamma=rl.gamma, keys=loss_module.tensor_keys, horizon=self.max_message_rounds
        )

    @classmethod
    def check_parameters(cls, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        """Refuse ``clip_value: true``, and batches too short for an episode to end."""
        super().check_parameters(hyper_params, base_dir)
        rl = hyper_params.rl
        if hyper_params.reinforce.use_advantage_and_critic:
            if rl.clip_value is True:
                raise ParameterError(
                    "rl.clip_value: got true, which means ppo.clip_epsilon, but the trainer"
                    " 'reinforce' has no such parameter; expected false or a number."
                )
            return
        rounds = build_protocol_handler(hyper_params, base_dir=base_dir).max_message_rounds
        steps = rl.steps_per_env_per_iteration
        if steps is not None and steps < rounds:
            raise ParameterError(
                f"rl.steps_per_env_per_iteration: got {steps}, but an episode can take {rounds}"
                " steps, and the trainer 'reinforce' learns from complete episodes; expected at"
                f" least {rounds}. Or set reinforce.use_advantage_and_critic=true."
            )

    @classmethod
    def stage_purposes(cls, hyper_params: HyperParameters) -> StagePurposes:
        """Return the purposes of each stage; without a critic, not its purpose."""
        stages = super().stage_purposes(hyper_params)
        if hyper_params.reinforce.use_advantage_and_critic:
            return stages
        return stages | {STAGE: stages[STAGE] - {Purpose.CRITIC}}
