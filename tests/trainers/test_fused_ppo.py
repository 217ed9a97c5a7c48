"""The losses of PPO in one operation equal those of the separate formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.agents.tapes import Var, put_gradients
from ratchet.algorithms.masks import masked_mean, masked_whiten
from ratchet.algorithms.policy_losses import approximate_kl, clip_fraction, effective_sample_size
from trainers.tensordict.objectives.fused_ppo import (
    METRICS,
    ClippedPpo,
    Sampled,
    clipped_ppo_losses,
    plain_losses,
    put_ppo_gradients,
)

OPTIONS = st.builds(
    ClippedPpo,
    clip_epsilon=st.sampled_from([0.1, 0.2, 0.5]),
    entropy_coef=st.sampled_from([0.0, 0.01]),
    critic_coef=st.sampled_from([0.5, 1.0]),
    normalize_advantage=st.booleans(),
    loss_critic_type=st.sampled_from(["smooth_l1", "l1", "l2"]),
    clip_value=st.sampled_from([None, 0.3]),
)


def losses_of(log_prob, entropy, value, sampled, options):
    now = (log_prob, entropy, value)
    return clipped_ppo_losses(
        lambda tape: tuple(tape.leaf(tensor) for tensor in now), lambda: now, sampled, options
    )


def frames(seed, num_frames, num_agents, share):
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return torch.randn(num_frames, num_agents, generator=generator)

    mask = torch.rand(num_frames, num_agents, generator=generator) < share
    now = [0.4 * draw(), draw().abs(), draw()]
    return now, Sampled(0.4 * draw(), draw(), draw(), draw(), mask)


@settings(max_examples=25, deadline=None)
@given(
    OPTIONS,
    st.integers(0, 10_000),
    st.integers(1, 12),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_losses_and_gradients_are_those_of_the_formulas(options, seed, num_frames, agents, share):
    now, sampled = frames(seed, num_frames, agents, share)
    leaves = [tensor.requires_grad_() for tensor in now]
    fused = losses_of(*leaves, sampled, options)
    plain = plain_losses(sampled, options, *leaves)
    losses = torch.stack([fused.objective, fused.critic, fused.entropy])
    torch.testing.assert_close(losses, plain, rtol=1e-4, atol=1e-5)
    weights = torch.tensor([1.0, 0.7, 1.3])
    found = torch.autograd.grad(losses @ weights, leaves)
    expected = torch.autograd.grad(plain @ weights, leaves, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_what_the_mask_hides_may_be_anything():
    now, sampled = frames(0, 8, 2, 0.5)
    hidden = ~sampled.mask
    spoiled = [tensor.masked_fill(hidden, float("nan")) for tensor in (*now, *sampled[:4])]
    options = ClippedPpo(0.2, 0.01, 0.5, True, "smooth_l1", 0.3)
    leaves = [tensor.requires_grad_() for tensor in spoiled[:3]]
    fused = losses_of(*leaves, Sampled(*spoiled[3:], sampled.mask), options)
    clean = losses_of(*now, sampled, options)
    assert torch.equal(torch.stack(fused[:3]), torch.stack(clean[:3]))
    grads = torch.autograd.grad(sum(fused[:3]), leaves)
    assert all(not grad[hidden].any() for grad in grads)


def test_metrics_are_those_of_the_formulas():
    now, sampled = frames(3, 40, 2, 0.7)
    options = ClippedPpo(0.2, 0.01, 0.5, True, "l2", None)
    found = dict(zip(METRICS, losses_of(*now, sampled, options).metrics, strict=True))
    log_ratio, mask = now[0] - sampled.log_prob, sampled.mask
    advantage = masked_whiten(sampled.advantage, mask)
    ratio = log_ratio.exp()
    policy = torch.maximum(-ratio * advantage, -ratio.clamp(0.8, 1.2) * advantage)
    expected = {
        "policy_loss": masked_mean(policy, mask, 0),
        "critic_loss": masked_mean((now[2] - sampled.value_target) ** 2, mask, 0),
        "entropy": masked_mean(now[1], mask, 0),
        "kl": approximate_kl(log_ratio, mask),
        "clip_fraction": clip_fraction(log_ratio, mask, clip_epsilon=0.2),
        "effective_sample_size": effective_sample_size(log_ratio, mask),
    }
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_second_derivatives_exist():
    now, sampled = frames(1, 6, 1, 1.0)
    options = ClippedPpo(0.2, 0.01, 0.5, False, "l2", None)
    leaves = [tensor.requires_grad_() for tensor in now]

    def curvature(loss):
        first = torch.autograd.grad(loss, leaves[0], create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), leaves[0])[0]

    fused = curvature(losses_of(*leaves, sampled, options).objective)
    plain = curvature(plain_losses(sampled, options, *leaves)[0])
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-6)
    assert fused.any()


@pytest.mark.parametrize("changed", ["policy_loss", "metrics"])
def test_a_subclass_that_changes_a_part_is_obeyed(tiny, changed):
    from trainers.tensordict.objectives.ppo import ClippedPpoObjective

    called = []

    def noted(self, *args):
        called.append(changed)
        return getattr(ClippedPpoObjective, changed)(self, *args)

    own = type("OwnLoss", (ClippedPpoObjective,), {changed: noted})
    trainer = tiny.trainer(tiny.parameters())
    trainer.initial_state()
    rollouts = trainer.components.gae(trainer.components.collector.collect(0))
    own(trainer.policy_operator, trainer.value_operator)(rollouts.reshape(-1))
    assert called


@settings(max_examples=25, deadline=None)
@given(OPTIONS, st.integers(0, 10_000), st.integers(1, 12), st.sampled_from([0.0, 0.5, 1.0]))
def test_gradients_put_without_autograd_are_those_of_backward_bit_for_bit(
    options, seed, num_frames, share
):
    now, sampled = frames(seed, num_frames, 2, share)
    leaves = [tensor.requires_grad_() for tensor in now]
    losses = losses_of(*leaves, sampled, options)
    sum(losses[:3]).backward()
    expected = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    found = put_ppo_gradients(
        lambda tape: tuple(tape.leaf(leaf) for leaf in leaves), sampled, options
    )
    for one, other in zip(found, losses, strict=True):
        assert torch.equal(one, other.detach())
        assert not one.requires_grad
    for leaf, grad in zip(leaves, expected, strict=True):
        if leaf.grad is None:  # its loss has no weight
            assert not grad.any()
        else:
            assert torch.equal(leaf.grad, grad)


def test_gradients_that_are_one_tensor_can_be_scaled_one_by_one():
    """Clipping scales each in place: a tensor that stands for two would be scaled twice."""
    one, other = (torch.zeros(3, requires_grad=True) for _ in range(2))

    def record(tape):
        leaves = [tape.leaf(one), tape.leaf(other)]
        total = Var((one + other).sum())

        def back(grad):
            shared = grad * torch.ones(3)
            for leaf in leaves:
                leaf.add_grad(shared)

        tape.record(back, total)
        return [total]

    put_gradients(record, [True])
    one.grad.mul_(2)
    assert other.grad.tolist() == [1.0, 1.0, 1.0]
