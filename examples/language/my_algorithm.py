"""An algorithm as functions of tensors: what is easiest to test, and to share among trainers."""

from __future__ import annotations

from ratchet.algorithms.language.returns import token_reward_to_go, whiten_tokens
from ratchet.rollouts import Batch


def compute_my_advantages(batch: Batch, *, discount_factor: float) -> Batch:
    """Give each token the discounted reward that follows it, whitened over the batch."""
    mask = batch.values["loss_mask"]
    returns = token_reward_to_go(batch.values["token_level_scores"], mask, gamma=discount_factor)
    batch.values["advantages"] = whiten_tokens(returns, mask)
    return batch
