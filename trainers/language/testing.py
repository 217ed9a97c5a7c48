"""Test results of a language model: means, and a row for each completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ratchet.scenarios.language_task.task import EXACT_MATCH, NUM_TURNS
from ratchet.statistics.results import METRIC_PREFIX
from trainers.results import Metrics, TestResult

if TYPE_CHECKING:
    from ratchet.rollouts.trajectory import Trajectory


def summarise_answers(indices: Mapping[str, int], trajectories: Sequence[Trajectory]) -> TestResult:
    """Summarise completions of tasks; ``indices``: a task's id → its index in the dataset.

    Each completion has one row and equal weight in the means, however often its conversation was
    rewritten. Parts of the reward and metrics are averaged by name. The evaluator's metrics are
    also columns of the table.
    """
    runs: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        runs.setdefault(trajectory.attempt_id, []).append(trajectory)
    episodes = list(runs.values())
    last = [episode[-1] for episode in episodes]
    agent = last[0].agent
    lengths = [sum(segment.num_written for segment in episode) for episode in episodes]
    table: dict[str, list[Any]] = {
        "datapoint_id": [indices[answer.task_id] for answer in last],
        "task_id": [answer.task_id for answer in last],
        **_correct(last),
        f"reward.{agent}": [answer.reward for answer in last],
        "response_length": lengths,
    }
    table |= _evaluated(last, excluded=(EXACT_MATCH,) if "correct" in table else ())
    metrics: Metrics = {
        "num_datapoints": float(len(set(table["datapoint_id"]))),
        f"{agent}.mean_episode_reward": fmean(table[f"reward.{agent}"]),
        "mean_response_length": fmean(lengths),
        "truncated_fraction": fmean(float(answer.is_truncated) for answer in last),
    }
    for part in dict.fromkeys(
        name for answer in last for name in (*answer.scores, *answer.metrics)
    ):
        scores = [answer.metrics.get(part, answer.scores.get(part)) for answer in last]
        metrics[part] = fmean(value for value in scores if value is not None)
    return TestResult(metrics, table)


def _correct(answers: Sequence[Trajectory]) -> dict[str, list[int]]:
    """Return the column ``correct`` if correctness is known for all completions."""
    exact_matches = [answer.metrics.get(EXACT_MATCH) for answer in answers]
    known = all(each in (0.0, 1.0) for each in exact_matches)
    return {"correct": [int(each == 1.0) for each in exact_matches]} if known else {}


def _evaluated(
    answers: Sequence[Trajectory], excluded: Sequence[str]
) -> dict[str, list[float | None]]:
    """Return a column for each of the evaluator's metrics except those in ``excluded``."""
    names = dict.fromkeys(name for answer in answers for name in answer.metrics)
    return {
        f"{METRIC_PREFIX}{name}": [answer.metrics.get(name) for answer in answers]
        for name in names
        if name not in (*excluded, NUM_TURNS)
    }
