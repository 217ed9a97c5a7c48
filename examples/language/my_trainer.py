"""Custom trainer for a model in this process: advantages are scaled, standardised rewards.

    ratchet run examples/language/my_task.yaml

``config.algorithm`` contains ``trainer.algorithm`` of the experiment file.
"""

from __future__ import annotations

from typing import Any

import torch

from ratchet.rollouts import Batch
from trainers import SelfHostedTrainer


class MyCustomTrainer(SelfHostedTrainer):
    """Trainer with the advantage: standardised reward times ``my_param``."""

    def __init__(self, config: Any) -> None:  # noqa: ANN401 -- an OmegaConf config, or a mapping
        super().__init__(config)
        self._my_param = self._config.algorithm.get("my_param", 0.5)

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        batch = Batch.remove_redundant_left_padding(
            batch,
            pad_token_id=self._pad_token_id,
            anchor_field="input_ids",
            fields=["input_ids", "attention_mask", "position_ids", "loss_mask"],
        )
        batch.values["token_level_scores"] = self._reward_fn(batch)
        rewards = batch.metadata["rewards"]
        batch.metadata["advantages"] = self._my_param * self._compute_advantages(rewards)
        batch.values["my_custom_field"] = torch.zeros(len(batch))  # reaches _compute_loss
        return batch, {"custom/advantage_mean": float(batch.values["advantages"].mean())}

    def _compute_advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        if len(rewards) < 2:  # no other reward to compare with
            return torch.zeros(len(rewards))
        return (rewards - rewards.mean()) / (rewards.std() + 1e-8)
