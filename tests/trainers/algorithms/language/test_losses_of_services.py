"""The training service's losses of tokens are those of the algorithms, by other names."""

import pytest
import torch

from ratchet.language_models.training_service.token_losses import Tokens, find_loss
from trainers.algorithms.language import policy_losses

CLIP = {"clip_low": 0.2, "clip_high": 0.28}
BOUNDS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}
PAIRS = {
    "reinforce": ({}, lambda new, old, gain, mask: policy_losses.reinforce(new, gain, mask)),
    "importance_sampling": ({}, policy_losses.importance_sampling),
    "ppo": (BOUNDS, lambda *given: policy_losses.ppo_clip(*given, **CLIP)),
    "gspo": (BOUNDS, lambda *given: policy_losses.gspo(*given, **CLIP)),
    "cispo": (
        {"clip_low_threshold": 0.0, "clip_high_threshold": 1.5},
        lambda *given: policy_losses.cispo(*given, max_ratio=1.5),
    ),
    "ppo by default": ({}, lambda *g: policy_losses.ppo_clip(*g, clip_low=0.2, clip_high=0.2)),
    "gspo by default": ({}, lambda *g: policy_losses.gspo(*g, clip_low=3e-4, clip_high=4e-4)),
}


@pytest.mark.parametrize("case", PAIRS)
def test_losses_and_gradients_are_the_same(case):
    config, ours = PAIRS[case]
    name = case.partition(" ")[0]
    generator = torch.Generator().manual_seed(7)
    mask = torch.rand(5, 9, generator=generator) < 0.6
    new, old = -torch.rand(2, 5, 9, generator=generator) * 2
    gain = torch.randn(5, 1, generator=generator).expand(5, 9)
    rows = torch.arange(5)[:, None].expand(5, 9)[mask]
    here, there = new.clone().requires_grad_(), new.clone().requires_grad_()
    loss = ours(here, old, gain, mask.long()).loss
    terms = find_loss(name, config)(Tokens(there[mask], old[mask], gain[mask], rows), config)
    torch.testing.assert_close(terms, loss[mask])
    loss.sum().backward()
    terms.sum().backward()
    torch.testing.assert_close(there.grad, here.grad)
