"""Independent proximal policy optimisation: each agent learns by PPO from its own rewards."""

from __future__ import annotations

from trainers.registry import register_trainer
from trainers.tensordict.objectives import Objective
from trainers.tensordict.ppo_objectives import ClipPPOLoss, KLPENPPOLoss
from trainers.tensordict.rl import TensorDictRlTrainer
from trainers.tensordict.value_estimators import GeneralizedAdvantageEstimator


@register_trainer("vanilla_ppo")
class VanillaPpoTrainer(TensorDictRlTrainer):
    """PPO with a clipped ratio or an adaptive KL penalty (``ppo.loss_type``)."""

    def _get_loss_module_and_gae(
        self,
    ) -> tuple[Objective, GeneralizedAdvantageEstimator | None]:
        """Make PPO's loss and the advantage estimator."""
        ppo, rl = self.hyper_params.ppo, self.hyper_params.rl
        common = {
            "entropy_coef": ppo.entropy_eps,
            "critic_coef": ppo.critic_coef,
            "normalize_advantage": ppo.normalize_advantage,
            "loss_critic_type": rl.loss_critic_type,
            "clip_value": self._clip_value(),
            "clip_epsilon": ppo.clip_epsilon,
        }
        loss_module: Objective
        if ppo.loss_type == "clip":
            loss_module = ClipPPOLoss(self.policy_operator, self.value_operator, **common)
        else:
            loss_module = KLPENPPOLoss(
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

    def _clip_value(self) -> float | None:
        """Give how far values may move: None, ``ppo.clip_epsilon`` for true, or the number."""
        clip_value = self.hyper_params.rl.clip_value
        if clip_value is True:
            return float(self.hyper_params.ppo.clip_epsilon)
        return None if clip_value is False else float(clip_value)
