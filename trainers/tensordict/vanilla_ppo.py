"""Independent proximal policy optimisation: each agent learns from its own rewards."""

from __future__ import annotations

from dataclasses import replace

from trainers.named import register_trainer
from trainers.tensordict.objectives.base import Objective
from trainers.tensordict.objectives.ppo import (
    ClippedPpoObjective,
    KlPenaltyPpoObjective,
    ppo_options,
)
from trainers.tensordict.objectives.value_estimators import MaskedGae
from trainers.tensordict.rl import TensorDictRlTrainer


@register_trainer("vanilla_ppo")
class VanillaPpoTrainer(TensorDictRlTrainer):
    """PPO with a clipped ratio or an adaptive KL penalty (``ppo.loss_type``)."""

    traits = replace(TensorDictRlTrainer.traits, takes_sequences=True)

    def build_loss(
        self,
    ) -> tuple[Objective, MaskedGae | None]:
        """Create PPO's loss and the advantage estimator."""
        ppo, rl = self.hyper_params.ppo, self.hyper_params.rl
        common = ppo_options(ppo, rl)
        loss_module: Objective
        if ppo.loss_type == "clip":
            loss_module = ClippedPpoObjective(self.policy_operator, self.value_operator, **common)
        else:
            loss_module = KlPenaltyPpoObjective(
                self.policy_operator,
                self.value_operator,
                kl_target=ppo.kl_target,
                kl_beta=ppo.kl_beta,
                increment=ppo.kl_increment,
                decrement=ppo.kl_decrement,
                **common,
            )
        loss_module.make_value_estimator("GAE", gamma=rl.gamma, lmbda=rl.lmbda)
        return loss_module, loss_module.value_estimator
