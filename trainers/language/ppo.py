"""Proximal policy optimisation over tokens, with a value head on the model's last layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ratchet.algorithms.language.losses import value_loss
from ratchet.algorithms.language.returns import token_gae, whiten_tokens
from ratchet.algorithms.language.token_weights import weighted_sum
from ratchet.language_models.engines.rollouts import RolloutEngine
from ratchet.parameters.language import LanguagePpoParameters, PolicyLossParameters
from ratchet.rollouts.batch import Batch
from ratchet.rollouts.finite_scores import check_scores
from trainers.language.ranks.rows import of_rows
from trainers.language.self_hosted import Figures, SelfHostedTrainer
from trainers.named import register_trainer

if TYPE_CHECKING:
    from ratchet.language_models.local.model import LanguageModel, TokenScores


@register_trainer("language_ppo")
class LanguagePpoTrainer(SelfHostedTrainer):
    """PPO with a critic on the model's hidden states: a token's value depends on its prefix.

    See :class:`ratchet.parameters.language.LanguagePpoParameters`.
    """

    section: ClassVar[str] = "language_ppo"
    reads_per_step: ClassVar[int] = 2

    def _read_loss(self) -> PolicyLossParameters:
        self._given = self._parameters(LanguagePpoParameters, "language_ppo")
        return self._given

    def connect(self, model: LanguageModel, engine: RolloutEngine) -> None:
        """Train this model, with a value head that initially returns 0."""
        one = torch.tensor([[model.pad_token_id]])
        with torch.no_grad():
            width = model.hidden(one, torch.ones_like(one)).shape[-1]
        self._value_head = nn.Linear(width, 1, device=model.device)
        nn.init.zeros_(self._value_head.weight)
        nn.init.zeros_(self._value_head.bias)
        super().connect(model, engine)

    def _learning_parameters(self) -> list[nn.Parameter]:
        return [*self.model.parameters(), *self._value_head.parameters()]

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Estimate advantages from the critic's value of each token."""
        batch = batch.remove_redundant_left_padding().remove_redundant_right_padding()
        values = batch.values
        values["token_level_scores"] = self._reward_fn(batch)
        if self._kl_coef > 0 and self._given.kl.place == "reward":
            batch = self._apply_kl_penalty(batch)
        scores = values["token_level_scores"]
        check_scores(scores, batch.metadata.get("task_ids", ()), name="batch: token_level_scores")
        mask = values["loss_mask"]
        values["old_values"] = self._compute_old_values(batch).cpu()
        gae = token_gae(
            scores,
            values["old_values"],
            mask,
            gamma=self._given.gamma,
            lmbda=self._given.lmbda,
        )
        values["returns"] = gae.returns
        values["advantages"] = (
            whiten_tokens(gae.advantage, mask) if self._given.whiten else gae.advantage
        )
        is_trained = mask.bool()
        return batch, {
            "critic/returns/mean": float(gae.returns[is_trained].mean()),
            "critic/values/mean": float(values["old_values"][is_trained].mean()),
        }

    @of_rows
    def _compute_old_values(self, batch: Batch) -> Tensor:
        """Return the critic's values before the step, [B, T]."""
        return self._read_in_parts(self._compute_values, batch)

    def _compute_values(self, batch: Batch) -> Tensor:
        """Return the critic's value before each token, [B, T], with gradients."""
        hidden = self.model.hidden(batch.values["input_ids"], batch.values["attention_mask"])
        value = self._value_head(hidden.float()).squeeze(-1)
        return torch.cat([torch.zeros_like(value[:, :1]), value[:, :-1]], 1)

    def _compute_loss(
        self, scores: TokenScores, batch: Batch, weights: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Figures]:
        """Return the policy's loss plus the weighted critic loss, a mean over tokens."""
        loss, figures = super()._compute_loss(scores, batch, weights)
        values = batch.values
        critic_loss = value_loss(
            self._compute_values(batch),
            values["returns"],
            values["loss_mask"],
            old_value=None if self._given.value_clip is None else values["old_values"],
            clip_value=self._given.value_clip,
        )
        critic = weighted_sum(critic_loss.loss, weights[1])
        figures["critic/loss"] = critic.detach()
        return loss + self._given.critic_coef * critic, figures

    def take_state(self) -> dict[str, Any]:
        """Add the critic's head."""
        return {**super().take_state(), "value_head": dict(self._value_head.state_dict())}

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`take_state`."""
        super().put_state(state)
        self._value_head.load_state_dict(state["value_head"])
