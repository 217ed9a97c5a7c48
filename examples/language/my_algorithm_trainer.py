"""Trainer whose algorithm is in a separate module of the same folder."""

from __future__ import annotations

from ratchet.rollouts import Batch
from trainers import SelfHostedTrainer

from .my_algorithm import compute_my_advantages


class MyTrainer(SelfHostedTrainer):
    """REINFORCE with discounted rewards-to-go."""

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        batch = compute_my_advantages(batch, discount_factor=self._config.algorithm.discount_factor)
        return batch, {"algorithm/advantage_max": float(batch.values["advantages"].max())}
