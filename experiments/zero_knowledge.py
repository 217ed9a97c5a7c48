"""Trainer whose adversarial verifier and simulator follow the gradient of their likeness.

Zero knowledge rewards both by how alike their logits are. That reward does not depend on the
actions they sample, so the policy gradient of a last round is zero in expectation, and PPO alone
does not teach them. This trainer adds the likeness to PPO's loss: the simulator increases it, the
adversarial verifier decreases it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch.nn.functional import cosine_similarity

from ratchet.algorithms.masks import masked_mean
from ratchet.protocols.zero_knowledge import ADVERSARIAL, SIMULATOR
from trainers import register_trainer
from trainers.tensordict.objectives.ppo import ClippedPpoObjective, ppo_options
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer

if TYPE_CHECKING:
    from tensordict import TensorDict, TensorDictBase
    from torch import Tensor

    from ratchet.agents.combined import CombinedAgents
    from trainers.tensordict.objectives.base import Objective
    from trainers.tensordict.objectives.value_estimators import MaskedGae


class LikenessObjective(ClippedPpoObjective):
    """PPO's losses, and the likeness: the simulator maximises it, the adversary minimises it."""

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the losses of a minibatch ``[B]``."""
        losses = super().forward(tensordict)
        agents = cast("CombinedAgents", self.combined_agents)
        logits = agents.evaluate(tensordict, with_logits=True)
        adversary, simulator = (
            self._own_logits(tensordict, logits, name) for name in (ADVERSARIAL, SIMULATOR)
        )
        acts = self.learning_mask(tensordict)
        for name, sign, pair in (
            (SIMULATOR, -1, (detached(adversary), simulator)),
            (ADVERSARIAL, 1, (adversary, detached(simulator))),
        ):
            if self.learning_agents is None or name in self.learning_agents:
                messages, decisions = (
                    cosine_similarity(*parts) for parts in zip(*pair, strict=True)
                )
                mask = acts[:, self.combined_agents.agent_names.index(name)]
                losses[f"loss_likeness_{name}"] = sign * masked_mean(messages + decisions, mask)
        return losses

    def _own_logits(
        self, tensordict: TensorDictBase, logits: TensorDictBase, name: str
    ) -> tuple[Tensor, Tensor]:
        """Return an agent's logits of messages and of decisions [B, N], 0 where it cannot act."""
        index = self.combined_agents.agent_names.index(name)
        speaks = tensordict["agents", "active"][:, index]
        message = logits["agents", "message_logits"][:, index]
        message = torch.where(speaks[..., None, None] & message.isfinite(), message, 0.0)
        own = message[:, speaks.any(0)].flatten(1)
        decides = tensordict["agents", "can_decide"][:, index, None]
        decision = logits["agents", "decision_logits"][:, index]
        return own, torch.where(decides & decision.isfinite(), decision, 0.0)


def detached(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return tensors without their gradients."""
    return tuple(part.detach() for part in parts)


@register_trainer("likeness_ppo")
class LikenessPpoTrainer(VanillaPpoTrainer):
    """PPO with :class:`LikenessObjective`."""

    def _get_loss_module_and_gae(self) -> tuple[Objective, MaskedGae | None]:
        rl = self.hyper_params.rl
        options = ppo_options(self.hyper_params.ppo, rl)
        loss = LikenessObjective(self.policy_operator, self.value_operator, **options)
        loss.make_value_estimator("GAE", gamma=rl.gamma, lmbda=rl.lmbda)
        return loss, loss.value_estimator
