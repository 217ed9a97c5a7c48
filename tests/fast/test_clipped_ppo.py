"""Clipped PPO's fast path against the plain losses: values, metrics and gradients."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn

from ratchet.fast.dispatch import only_plain_operations
from ratchet.fast.ppo import clipped_ppo_gradients
from trainers.tensordict.objectives.base import Evaluation
from trainers.tensordict.objectives.ppo import ClippedPpoObjective
from trainers.tensordict.objectives.value_estimators import DEFAULT_KEYS

OPTIONS = st.fixed_dictionaries(
    {
        "clip_epsilon": st.sampled_from([0.1, 0.2, 0.5]),
        "entropy_coef": st.sampled_from([0.0, 0.01]),
        "critic_coef": st.sampled_from([0.0, 0.5, 1.0]),
        "normalize_advantage": st.booleans(),
        "loss_critic_type": st.sampled_from(["smooth_l1", "l1", "l2"]),
        "clip_value": st.sampled_from([None, 0.3]),
    }
)
SAMPLED = ("sample_log_prob", "advantage", "value", "value_target")


class Scores(nn.Module):
    """Agents whose scores are parameters."""

    def __init__(self, *scores):
        super().__init__()
        self.scores = nn.ParameterList(scores)


def objective_of(scores, cls=ClippedPpoObjective, **options):
    objective = cls(Scores(*scores), None, **options)
    objective.evaluate = lambda *_, **__: Evaluation(*objective.actor_network.scores)
    return objective


def frames_and_scores(seed, num_frames, num_agents, share):
    generator = torch.Generator().manual_seed(seed)

    def sample():
        return torch.randn(num_frames, num_agents, generator=generator)

    mask = torch.rand(num_frames, num_agents, generator=generator) < share
    scores = [0.4 * sample(), sample().abs(), sample()]
    sampled = [0.4 * sample(), sample(), sample(), sample()]
    frames = TensorDict({"frame": torch.arange(num_frames)}, batch_size=[num_frames])
    for name, values in zip((*SAMPLED, "learns"), (*sampled, mask), strict=True):
        frames.set(DEFAULT_KEYS[name], values)
    return frames, scores


def gradients(objective, frames):
    for score in objective.actor_network.scores:
        score.grad = None
    losses = objective.compute_gradients(frames, nullcontext())
    return losses, [score.grad for score in objective.actor_network.scores]


def assert_equals_plain(objective, frames):
    losses, found = gradients(objective, frames)
    with only_plain_operations():
        plain, expected = gradients(objective, frames)
    assert losses.keys() == plain.keys()
    for name, value in plain.items():
        assert not losses[name].requires_grad
        torch.testing.assert_close(losses[name], value, rtol=1e-4, atol=1e-5, msg=name)
    for one, other in zip(found, expected, strict=True):
        one, other = (torch.zeros(1) if grad is None else grad for grad in (one, other))
        torch.testing.assert_close(one.expand(other.shape), other, rtol=1e-3, atol=1e-5)
    return found


@settings(max_examples=40, deadline=None)
@given(
    OPTIONS,
    st.integers(0, 10_000),
    st.integers(1, 12),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_losses_metrics_and_gradients_are_those_of_the_plain_losses(
    options, seed, num_frames, num_agents, share
):
    frames, scores = frames_and_scores(seed, num_frames, num_agents, share)
    objective = objective_of(scores, **options)
    assert clipped_ppo_gradients(objective, frames, nullcontext()) is not None
    assert_equals_plain(objective, frames)


def test_what_the_mask_hides_may_be_anything():
    frames, scores = frames_and_scores(0, 8, 2, 0.5)
    options = {"clip_value": 0.3, "entropy_coef": 0.01}
    hidden = ~frames.get(DEFAULT_KEYS["learns"])
    expected, _ = gradients(objective_of(scores, **options), frames)
    for name in SAMPLED:
        frames.set(
            DEFAULT_KEYS[name], frames.get(DEFAULT_KEYS[name]).masked_fill(hidden, float("nan"))
        )
    spoiled = [score.masked_fill(hidden, float("nan")) for score in scores]
    losses, grads = gradients(objective_of(spoiled, **options), frames)
    for name, value in expected.items():
        assert torch.equal(losses[name], value)
    assert all(not grad[hidden].any() for grad in grads)


def test_rows_of_steps_are_frames():
    frames, scores = frames_and_scores(2, 12, 2, 0.7)
    expected = assert_equals_plain(objective_of(scores), frames)
    found = assert_equals_plain(objective_of(scores), frames.reshape(3, 4))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_without_learning_agents_no_gradient_is_set():
    frames, scores = frames_and_scores(0, 5, 2, 0.0)
    objective = objective_of(scores)
    objective.requires_grad_(False)
    losses, grads = gradients(objective, frames)
    assert grads == [None] * 3
    assert losses["loss_objective"] == 0


@pytest.mark.parametrize("changed", ["policy_loss", "losses_and_metrics", "metrics", "forward"])
def test_a_subclass_that_changes_a_part_is_obeyed(changed):
    frames, scores = frames_and_scores(1, 6, 2, 0.7)
    called = []

    def noted(self, *args):
        called.append(changed)
        return getattr(ClippedPpoObjective, changed)(self, *args)

    own = type("CustomLoss", (ClippedPpoObjective,), {changed: noted})
    gradients(objective_of(scores, own), frames)
    assert called


def test_other_types_mixed_precision_and_compiled_losses_are_left_to_the_plain_losses():
    frames, scores = frames_and_scores(1, 6, 2, 0.7)
    objective = objective_of(scores)
    double = frames.apply(lambda x: x.double() if x.is_floating_point() else x)
    assert clipped_ppo_gradients(objective, double, nullcontext()) is None
    autocast = torch.autocast("cpu", torch.bfloat16)
    assert clipped_ppo_gradients(objective, frames, autocast) is None
    objective._compiled = objective.forward
    assert clipped_ppo_gradients(objective, frames, nullcontext()) is None
