"""Masked-out values, padding and layout of rows do not affect losses and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.algorithms.language.losses import (
    cispo,
    cross_entropy,
    distillation_advantages,
    gspo,
    importance_sampling,
    kl_loss,
    penalised_rewards,
    ppo_clip,
    ppo_kl,
    reinforce,
    sequence_log_prob,
    value_loss,
)
from ratchet.algorithms.language.returns import (
    token_gae,
    token_n_step_returns,
    token_reward_to_go,
    whiten_tokens,
)
from ratchet.algorithms.language.token_weights import (
    importance_weights,
    token_weights,
    weighted_sum,
)
from ratchet.algorithms.language.trajectories import batch_advantages
from ratchet.rollouts import Batch, Trajectory, padding_data

EVERYTHING = {
    "reinforce": lambda a, _b, c, m: reinforce(a, c, m),
    "importance_sampling": importance_sampling,
    "ppo_clip": lambda *x: ppo_clip(*x, dual_clip=3.0),
    "ppo_kl": lambda *x: ppo_kl(*x, beta=0.5),
    "gspo": gspo,
    "cispo": cispo,
    "k1": lambda a, b, _c, m: kl_loss(a, b, m, kind="k1"),
    "k2": lambda a, b, _c, m: kl_loss(a, b, m, kind="k2"),
    "k3": lambda a, b, _c, m: kl_loss(a, b, m, kind="k3"),
    "cross_entropy": lambda a, _b, _c, m: cross_entropy(a, m),
    "value": lambda a, b, c, m: value_loss(a, b, m, old_value=c, clip_value=0.2),
    "sequence": lambda a, _b, _c, m: (sequence_log_prob(a, m), {}),
    "gae": lambda a, b, _c, m: (token_gae(a, b, m)[0], {"returns": token_gae(a, b, m)[1]}),
    "n_step": lambda a, b, _c, m: (token_n_step_returns(a, b, m, num_steps=2), {}),
    "reward_to_go": lambda a, _b, _c, m: (token_reward_to_go(a, m), {}),
    "whiten": lambda a, _b, _c, m: (whiten_tokens(a, m), {}),
    "distillation": lambda a, b, _c, m: (distillation_advantages(a, b, m, gamma=0.5), {}),
    "penalised": lambda a, b, c, m: (penalised_rewards(c, a, b, m, coefficient=0.5), {}),
    "importance_token": lambda a, b, _c, m: importance_weights(a, b, m),
    "importance_sequence": lambda a, b, _c, m: importance_weights(a, b, m, level="sequence"),
}


def _computed(name, given_, mask):
    first = given_[0].clone().requires_grad_()
    found, metrics = EVERYTHING[name](first, *given_[1:], mask)
    numbers = {key: torch.as_tensor(value) for key, value in metrics.items()}
    if found.requires_grad:
        numbers["gradient"] = torch.autograd.grad(found.sum(), first)[0]
    return {**numbers, "itself": found.detach()}


@pytest.mark.parametrize("name", EVERYTHING)
@given(seed=st.integers(0, 10_000), other=st.sampled_from([float("nan"), float("inf"), -7.0]))
@settings(max_examples=8, deadline=None)
def test_masked_out_values_have_no_effect(name, seed, other):
    generator = torch.Generator().manual_seed(seed)
    given_ = [torch.randn(3, 5, generator=generator) for _ in range(3)]
    mask = (torch.rand(3, 5, generator=generator) < 0.6).long()
    changed = [torch.where(mask.bool(), values, other) for values in given_]
    expected, found = _computed(name, given_, mask), _computed(name, changed, mask)
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
        if value.shape == mask.shape:
            assert value[mask == 0].abs().sum() == 0, key


END = 0  # the end token, also used for padding
PLAYED = [
    Trajectory([5, 6, END, 3, END], [0, 0, 0, 1, 1], [0, 0, 0, -0.7, -0.2], 1.0, group_id="g"),
    Trajectory([5, END], [0, 1], [0, -1.5], 0.0, group_id="g"),
    Trajectory([END, 4, 7, END], [0, 1, 0, 1], [0, -0.1, 0, -0.9], 0.5, group_id="h"),
    Trajectory([4, 4, END], [0, 1, 1], [0, -0.3, -0.4], 0.25, group_id="h"),
]  # fmt: skip


def _step(batch):
    """Compute loss, gradient and metrics of a model with one number per token."""
    embedding = torch.linspace(-1, 1, 8).double().requires_grad_()
    mask = batch.values["loss_mask"]
    batch.metadata["advantages"] = batch_advantages(batch).advantage
    batch.check_required()
    log_prob = -torch.nn.functional.softplus(embedding[batch.values["input_ids"]])
    found = ppo_clip(log_prob, batch.values["rollout_log_probs"], batch.values["advantages"], mask)
    loss = weighted_sum(found.loss, token_weights(mask, "sequence_mean_token_mean"))
    loss.backward()
    share = token_weights(mask, "token_mean")
    metrics = [weighted_sum(value, share) for value in found.metrics.values()]
    return torch.stack([loss.detach(), *embedding.grad, *metrics])


@pytest.mark.parametrize("left_pad", [False, True])
@pytest.mark.parametrize("multiple", [1, 3])
def test_padding_layout_has_no_effect_even_with_the_end_token_as_padding(left_pad, multiple):
    plain = _step(Batch.from_trajectories(PLAYED, END))
    assert plain.abs().sum() > 0.1
    batch = Batch.from_trajectories(PLAYED, END, left_pad=left_pad).pad_to_multiple(multiple)
    torch.testing.assert_close(_step(batch), plain)
    wide = padding_data(batch, pad_token_id=7, max_length=11, left_pad=not left_pad)
    torch.testing.assert_close(_step(wide), plain)
    cut = wide.remove_redundant_left_padding(END).remove_redundant_right_padding(END)
    assert cut.values["input_ids"].shape[1] == 5
    torch.testing.assert_close(_step(cut), plain)


def test_batches_of_one_and_of_no_sample():
    for played in ([], PLAYED[:1]):
        assert _step(Batch.from_trajectories(played, END))[:9].abs().sum() == 0
