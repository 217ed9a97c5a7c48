"""Algorithm as functions of tensors, which are easy to test and to share among trainers."""

from __future__ import annotations

from ratchet.algorithms.language.returns import token_reward_to_go, whiten_tokens
from ratchet.rollouts import Batch


def compute_my_advantages(batch: Batch, *, discount_factor: float) -> Batch:
    """Set each token's advantage to its discounted reward-to-go, whitened over the batch."""
    mask = batch.values["loss_mask"]
    returns = token_reward_to_go(batch.values["token_level_scores"], mask, gamma=discount_factor)
    batch.values["advantages"] = whiten_tokens(returns, mask)
    return batch
