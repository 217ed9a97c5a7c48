"""Advantages of trajectories as custom trainers set them, and metrics of trajectories."""

from __future__ import annotations

import pytest
import torch

from ratchet.algorithms.language.metrics import log_grpo_metrics, log_rollout_metrics
from ratchet.algorithms.language.trajectories import (
    batch_advantages,
    compute_grpo_advantage_for_trajectories,
    trajectory_advantages,
)
from ratchet.errors import DataError
from ratchet.rollouts import Batch, Trajectory


def _played(reward, group="g", run="", written=1, **kwargs):
    mask = [0, 0, *[1] * written]
    tokens = list(range(len(mask)))
    return Trajectory(tokens, mask, [-1.0 * m for m in mask], reward, group_id=group,
                      attempt_id=run, **kwargs)  # fmt: skip


def test_advantages_are_set_by_group_and_run():
    played = [_played(3.0, run="x"), _played(5.0, run="x"), _played(0.0, run="y")]
    found = compute_grpo_advantage_for_trajectories(played, use_run_ids=True, scale="none")
    assert [one.advantage for one in found] == [1, 3, -2]
    assert found == played
    compute_grpo_advantage_for_trajectories(played, use_run_ids=False, baseline="leave_one_out",
                                            scale="none")  # fmt: skip
    assert [one.advantage for one in played] == [0.5, 3.5, -4]
    assert compute_grpo_advantage_for_trajectories([]) == []


@pytest.mark.parametrize("options", [{}, {"use_run_ids": False}, {"baseline": "leave_one_out"},
                                     {"baseline": "agent_average", "scale": "batch",
                                      "agent_averages": {"p": 0.5}}])  # fmt: skip
def test_a_batch_has_the_advantages_of_its_trajectories(options):
    played = [
        _played(3.0, run="x", agent="p"),
        _played(5.0, run="x", agent="v", written=3),
        _played(0.0, agent="p"),
        _played(9.0, written=0),
        _played(2.0, group="h"),
    ]
    expected = trajectory_advantages(played, **options)
    found = batch_advantages(Batch.from_trajectories(played, 0).pad_to_multiple(4), **options)
    torch.testing.assert_close(found.advantage[:5], expected.advantage)
    assert found.advantage[5:].tolist() == [0, 0, 0]
    assert found.metrics == expected.metrics
    assert found.agent_averages == expected.agent_averages


def test_rollout_metrics():
    metrics: dict[str, float] = {}
    log_rollout_metrics(
        [
            _played(1.0, written=3, finish_reason="length", is_truncated=True, model_version=4,
                    scores={"exact": 1.0}, metrics={"turns": 2.0}),
            _played(0.0, scores={"exact": 0.0, "form": 0.5}, model_version=5),
        ],
        metrics,
    )  # fmt: skip
    expected = {
        "rollout/num_trajectories": 2,
        "critic/score/mean": 0.5,
        "critic/score/std": 0.5,
        "critic/score/max": 1,
        "response_length/mean": 2,
        "response_length/min": 1,
        "response_length/max": 3,
        "prompt_length/mean": 2,
        "prompt_length/std": 0,
        "rollout/finish_length": 0.5,
        "rollout/finish_environment": 0,
        "rollout/truncated": 0.5,
        "rollout/score/exact": 0.5,
        "rollout/score/form": 0.5,
        "rollout/turns": 2,
        "rollout/model_version/max": 5,
    }
    assert {name: metrics[name] for name in expected} == expected
    assert all(type(value) is float for value in metrics.values())


def test_grpo_metrics():
    played = [_played(1.0, written=3), _played(0.0), _played(1.0, group="h")]
    compute_grpo_advantage_for_trajectories(played, scale="none")
    metrics: dict[str, float] = {}
    log_grpo_metrics(played, metrics)
    assert metrics["grpo/frac_constant_groups"] == 0.5
    assert metrics["grpo/std"] == 0.25
    assert metrics["grpo/num_groups"] == 2
    assert metrics["critic/rewards/mean"] == pytest.approx(2 / 3)
    # Three tokens of +½, one of −½, one of 0.
    assert metrics["critic/advantages/mean"] == pytest.approx(0.2)
    assert (metrics["critic/advantages/min"], metrics["critic/advantages/max"]) == (-0.5, 0.5)


def test_metrics_without_trajectories():
    metrics: dict[str, float] = {}
    log_rollout_metrics([], metrics)
    log_grpo_metrics([], metrics)
    assert metrics == {
        "rollout/num_trajectories": 0,
        "grpo/num_groups": 0,
        "grpo/frac_constant_groups": 0,
        "grpo/std": 0,
    }


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("scale", ["batch", "group", "none"])
def test_rewards_that_are_not_finite_are_refused_with_index_and_task(bad, scale):
    """With `scale="batch"` the NaN of one group would change the advantages of all."""
    played = [_played(float(i % 2), group=f"g{i // 2}", task_id=f"task {i // 2}") for i in range(4)]
    batch = Batch.from_trajectories(played, pad_token_id=0)
    scores = torch.zeros(batch.values["loss_mask"].shape)
    batch.values["token_level_scores"] = scores
    assert trajectory_advantages(played, scale=scale).advantage.isfinite().all()
    batch_advantages(batch, scale=scale)
    played[2].reward = bad
    scores[2, -1] = bad
    with pytest.raises(DataError, match=rf"reward: row 2 \(task 'task 1'\) has {bad}"):
        trajectory_advantages(played, scale=scale)
    with pytest.raises(DataError, match=rf"scores: row 2 \(task 'task 1'\) has {bad}"):
        batch_advantages(batch, scale=scale)
