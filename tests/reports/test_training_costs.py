"""Usage of training is counted in all stages, pretraining and imitation included."""

from __future__ import annotations

import pytest
from made_runs import hyper_params

from ratchet import HyperParameters
from ratchet.reports.comparison.runs import ComparedRun, Group
from ratchet.reports.comparison.training_costs import (
    Used,
    cumulative_cost,
    positions_of,
    used_by_stage,
    used_in_training,
    used_per_run,
)
from ratchet.tracking.metrics import MetricPoint


def run_of(params, points):
    made = [MetricPoint(stage, iteration, values) for stage, iteration, values in points]
    return ComparedRun("r", 0, {}, params.to_dict(), points=made)


def imitating(source="hand_made"):
    params = hyper_params(rl__frames_per_batch=100, imitation__agents=["prover"])
    params = params.replace({"imitation.num_iterations": 4, "imitation.source": source})
    params = params.replace({"rl.num_normalization_steps": 250})
    points = [("imitate-prover", i, {"prover.train_loss": 1.0}) for i in range(4)]
    points += [("train", i, {"num_episodes": 30.0}) for i in range(3)]
    return run_of(params, points)


def test_frames_of_imitation_are_counted_and_precede_training():
    run = imitating()
    assert used_by_stage(run) == {
        "normalization": Used(frames=300),  # 250 in complete batches
        "imitate-prover": Used(frames=400),
        "train": Used(frames=300, labels=90),
    }
    assert used_in_training(run) == Used(frames=1000, labels=90)
    assert str(used_in_training(run)) == "1,000 frames, 90 labels"
    assert cumulative_cost(run, "frames").at(run.points[4:]) == [800, 900, 1000]
    assert positions_of(run, "iterations", run.points[4:]) == [0, 1, 2]


def test_imitated_rollouts_of_another_run_are_not_counted_again():
    assert used_in_training(imitating("run:other")) == Used(frames=600, labels=90)


def test_labels_of_pretraining_are_the_examples_of_every_epoch():
    points = [("build_scenario", 0, {"num_datapoints/train": 51.0, "num_datapoints/test": 9.0})]
    points += [("pretrain-verifier", epoch, {"verifier.train_loss": 1.0}) for epoch in range(2)]
    run = run_of(hyper_params(), points)
    assert used_by_stage(run) == {"pretrain-verifier": Used(labels=102)}


def test_tokens_and_labels_of_language_models_are_counted_without_tests():
    usage = {"calls": 4.0, "prompt_tokens": 10.0, "completion_tokens": 5.0}
    points = [
        ("sample_rollouts", 0, usage),
        ("log_stats", 0, {"num_rollouts": 7.0}),
        ("await_fine_tune_jobs", 0, {"training_tokens": 100.0}),
        ("test", 1, usage),
    ]
    params = hyper_params(rl__rollouts_per_iteration=7, rl__frames_per_batch=None)
    assert used_in_training(run_of(params, points)) == Used(tokens=115, labels=7)


@pytest.mark.parametrize(("until_loss", "stage"), [(0, "warm-up"), (0.5, "warm-up, at most")])
def test_demonstrations_of_a_warm_up_are_counted(until_loss, stage):
    warm_up = {"num_steps": 50, "batch_size": 32, "until_loss": until_loss}
    params = HyperParameters(
        scenario="language_task",
        trainer="grpo",
        dataset="reverse",
        agents={"_default": {"model": "small", "warm_up": warm_up}},
    )
    points = [("train", 0, {"rollout/num_trajectories": 8.0, "response_length/mean": 2.0})]
    run = run_of(params, points)
    assert used_by_stage(run) == {stage: Used(labels=1600), "train": Used(tokens=16, labels=8)}


def test_games_without_labels_use_none():
    networks = HyperParameters(scenario="gymnasium", trainer="vanilla_ppo", dataset="CartPole-v1")
    played = run_of(networks, [("train", 0, {"num_episodes": 30.0})])
    assert used_in_training(played).labels == 0
    models = HyperParameters(
        scenario="language_task", trainer="grpo", dataset="reverse", agents={"_default": {}}
    )
    rewards = {"rollout/left/reward": 1.0, "rollout/right/reward": -1.0}
    match = run_of(models, [("train", 0, {"rollout/num_trajectories": 8.0, **rewards})])
    assert used_in_training(match).labels == 0


def test_a_group_used_the_mean_of_its_runs():
    group = Group("g", {}, [[imitating(), imitating("run:other")]])
    assert used_per_run(group) == Used(frames=800, labels=90)
