"""A policy's loss as its parameters describe it."""

from __future__ import annotations

import pytest
import torch

from ratchet.language_models.local.model import TokenScores
from ratchet.parameters.language import PolicyLossParameters
from ratchet.rollouts.batch import Batch
from trainers.language.grpo import GrpoTrainer
from trainers.language.policy_loss import PolicyLoss


def _gradient(**given):
    """Return the gradient by log-probabilities, one step behind, of rows with one advantage."""
    loss = PolicyLoss(PolicyLossParameters(**given), is_corrected=True)
    generator = torch.Generator().manual_seed(3)
    log_probs = -torch.rand(2, 4, generator=generator)
    mask = torch.ones(2, 4)
    values = {
        "loss_mask": mask,
        "old_log_probs": log_probs.clone(),
        "rollout_log_probs": log_probs - 0.4 * torch.rand(2, 4, generator=generator),
        "advantages": torch.tensor([[1.0], [-0.5]]).expand(2, 4).contiguous(),
    }
    log_probs.requires_grad_()
    total, _ = loss(TokenScores(log_probs), Batch(values), loss.weights(mask))
    (gradient,) = torch.autograd.grad(total, log_probs)
    return gradient


def test_one_step_behind_gspo_keeps_one_factor_for_all_tokens_of_a_sequence():
    gradient = _gradient(policy_loss="gspo", clip_low=3e-4, clip_high=4e-4)
    assert torch.allclose(gradient, gradient[:, :1].expand_as(gradient), atol=1e-7)
    by_token = _gradient(
        policy_loss="gspo", clip_low=3e-4, clip_high=4e-4, sampler_correction="token"
    )
    assert not torch.allclose(by_token, by_token[:, :1].expand_as(by_token), atol=1e-4)


@pytest.mark.parametrize("policy_loss", ["clip", "cispo", "importance_sampling", "reinforce"])
def test_losses_of_tokens_are_corrected_by_token(policy_loss):
    usual = _gradient(policy_loss=policy_loss)
    assert torch.equal(usual, _gradient(policy_loss=policy_loss, sampler_correction="token"))
    assert not torch.equal(usual, _gradient(policy_loss=policy_loss, sampler_correction="sequence"))


@pytest.mark.parametrize(
    ("config", "correction"),
    [
        ({}, "none"),
        ({"mode": "one_step_behind"}, "token"),
        ({"engine": {"name": "vllm"}}, "token"),
        ({"engine": {"name": "vllm"}, "grpo": {"variant": "gspo"}}, "sequence"),
        ({"engine": {"name": "vllm"}, "grpo": {"sampler_correction": "none"}}, "none"),
    ],
)
def test_rollouts_of_other_weights_or_libraries_are_corrected(config, correction):
    assert GrpoTrainer(config)._policy_loss.correction == correction
