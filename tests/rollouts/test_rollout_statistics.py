"""Statistics of rollouts agree with a slow reference that reads rollouts sequentially."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import numpy as np
import pytest

from ratchet.errors import ArrayShapeError, UnknownNameError
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.outcomes import always_failed, final_decisions, rollout_statistics
from ratchet.rollouts.specs import rollout_spec

AGENTS = ("prover", "verifier")


def share(values: list[bool]) -> float:
    return sum(values) / len(values) if values else math.nan


def mean(values: list[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def spread(values: list[float]) -> float:
    return statistics.pstdev(values) if values else math.nan


def slow_judge(rollouts: NestedArrayDict) -> dict[str, float]:
    verdicts, lengths, by_datapoint = [], [], defaultdict(list)
    rewards, turns = defaultdict(list), defaultdict(list)
    for one in rollouts:
        decision = 2
        steps = [step for step, padded in enumerate(one["padding"].tolist()) if not padded]
        for step in steps:
            if one["agents", "decision"][step, 1] != 2:
                decision = int(one["agents", "decision"][step, 1])
            for place, agent in enumerate(AGENTS):
                if one["agents", "active"][step, place]:
                    cells = ("retry_count", "token_limit", "valid")
                    turns[agent].append([one["agents", cell][step, place] for cell in cells])
        for place, agent in enumerate(AGENTS):
            rewards[agent].append(float(sum(one["agents", "reward"][:, place].tolist())))
        y = int(one["y"])
        verdicts.append((y, decision))
        lengths.append(len(steps))
        by_datapoint[int(one["datapoint_id"])].append(decision == y)
    decided = [d for _, d in verdicts if d != 2]
    expected = {
        "num_rollouts": len(verdicts),
        "mean_episode_length": mean(lengths),
        "std_episode_length": spread(lengths),
        "accuracy": share([d == y for y, d in verdicts]),
        "std_accuracy": spread([float(d == y) for y, d in verdicts]),
        "mean_decision": mean(decided),
        "std_decision": spread(decided),
        "no_decision_proportion": share([d == 2 for _, d in verdicts]),
        "accuracy_class_0": share([d == 0 for y, d in verdicts if y == 0]),
        "accuracy_class_1": share([d == 1 for y, d in verdicts if y == 1]),
        "precision": share([y == 1 for y, d in verdicts if d == 1]),
        "recall": share([d == 1 for y, d in verdicts if y == 1]),
        "worst_datapoint_accuracy": min(map(share, by_datapoint.values()), default=math.nan),
        "always_failed_proportion": share([not any(v) for v in by_datapoint.values()]),
        "always_solved_proportion": share([all(v) for v in by_datapoint.values()]),
        "sometimes_solved_proportion": share([len(set(v)) == 2 for v in by_datapoint.values()]),
        "rollouts_per_datapoint": mean([len(v) for v in by_datapoint.values()]),
    }
    for agent in AGENTS:
        expected[f"{agent}.mean_episode_reward"] = mean(rewards[agent])
        expected[f"{agent}.std_episode_reward"] = spread(rewards[agent])
        expected[f"{agent}.retry_proportion"] = share([r > 0 for r, _, _ in turns[agent]])
        expected[f"{agent}.token_limit_proportion"] = share([t for _, t, _ in turns[agent]])
        expected[f"{agent}.invalid_proportion"] = share([not v for _, _, v in turns[agent]])
        expected[f"{agent}.num_turns"] = len(turns[agent])
        expected[f"{agent}.num_invalid_replies"] = sum(r + (not v) for r, _, v in turns[agent])
        expected[f"{agent}.num_turns_without_reply"] = sum(not v for _, _, v in turns[agent])
        expected[f"{agent}.num_cut_off_replies"] = sum(limit for _, limit, _ in turns[agent])
    return expected


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("num_rollouts", [0, 1, 2, 25])
def test_they_agree_with_the_slow_judge(make_rollouts, seed, num_rollouts):
    rollouts = make_rollouts(seed, num_rollouts)
    got = rollout_statistics(rollouts, AGENTS, "verifier")
    assert got == pytest.approx(slow_judge(rollouts), nan_ok=True, rel=1e-6, abs=1e-9)
    assert all(type(value) is float for value in got.values())


def decided(ys: list[int], decisions: list[int], datapoints: list[int]) -> NestedArrayDict:
    rollouts = rollout_spec(2, 2, 1).blank(len(ys))
    rollouts["y"] = ys
    rollouts["datapoint_id"] = datapoints
    rollouts["agents", "decision"][:, 1, 1] = decisions
    return rollouts


def test_golden_values():
    rollouts = decided([1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 2], [0, 0, 0, 1, 1, 3])
    stats = rollout_statistics(rollouts, AGENTS, "verifier", prefix="test_")
    golden = {
        "accuracy": 3 / 6,
        "accuracy_class_0": 1 / 3,
        "accuracy_class_1": 2 / 3,
        "precision": 2 / 3,
        "recall": 2 / 3,
        "mean_decision": 3 / 5,
        "no_decision_proportion": 1 / 6,
        "worst_datapoint_accuracy": 0.0,
        "always_failed_proportion": 1 / 3,
        "always_solved_proportion": 0.0,
        "sometimes_solved_proportion": 2 / 3,
        "rollouts_per_datapoint": 2.0,
    }
    assert {name: stats[f"test_{name}"] for name in golden} == pytest.approx(golden)
    assert all(name.startswith("test_") for name in stats)
    assert always_failed(rollouts, 1).tolist() == [False] * 5 + [True]


def test_errors_are_counted_by_agent_and_kind():
    rollouts = decided([1, 0], [1, 2], [0, 1])
    rollouts["padding"][:] = False
    agents = rollouts.nested("agents")
    agents["active"][:, :, 1] = True
    agents["valid"][:, :, 1] = [[True, True], [True, False]]
    agents["retry_count"][:, :, 1] = [[0, 2], [1, 20]]
    agents["token_limit"][:, :, 1] = [[True, False], [False, True]]
    stats = rollout_statistics(rollouts, AGENTS, "verifier")
    kinds = ("num_invalid_replies", "num_turns_without_reply", "num_cut_off_replies")
    assert [stats[f"verifier.{kind}"] for kind in kinds] == [24.0, 1.0, 2.0]
    assert [stats[f"prover.{kind}"] for kind in kinds] == [0.0, 0.0, 0.0]


def test_nothing_over_nothing_is_not_a_number_and_not_a_warning(recwarn):
    nobody_accepted = decided([0, 0], [0, 2], [0, 1])
    stats = rollout_statistics(nobody_accepted, AGENTS, "verifier")
    assert math.isnan(stats["precision"])
    assert math.isnan(stats["recall"])
    assert math.isnan(stats["accuracy_class_1"])
    assert math.isnan(stats["prover.retry_proportion"])
    assert stats["accuracy_class_0"] == 0.5
    assert not recwarn.list


def test_the_last_decision_counts_and_a_prover_has_none():
    rollouts = decided([1, 1], [2, 1], [0, 1])
    rollouts["agents", "decision"][:, 0, 1] = [1, 0]
    assert final_decisions(rollouts, 1).tolist() == [1, 1]
    assert final_decisions(rollouts, 0).tolist() == [2, 2]


def test_a_million_small_rewards_are_summed_without_loss():
    rollouts = rollout_spec(1000, 1, 1).blank(1)
    rollouts["agents", "reward"][:] = np.float32(0.1)
    stats = rollout_statistics(rollouts, ("verifier",), "verifier")
    assert stats["verifier.mean_episode_reward"] == pytest.approx(1000 * float(np.float32(0.1)))


def test_rollouts_of_other_agents_are_refused(make_rollouts):
    rollouts = make_rollouts(0, 2)
    with pytest.raises(ArrayShapeError, match=r"agents\.reward: got shape \(2, 4, 2\)"):
        rollout_statistics(rollouts, ("a", "b", "verifier"), "verifier")
    with pytest.raises(UnknownNameError, match="Did you mean 'verifier'"):
        rollout_statistics(rollouts, AGENTS, "verifer")
