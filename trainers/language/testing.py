"""Test results of a language model: means, and a row for each completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ratchet.scenarios.language_task.rollout import RETURN
from ratchet.scenarios.language_task.task import EXACT_MATCH, NUM_TURNS
from ratchet.statistics.results import METRIC_PREFIX
from trainers.results import Metrics, TestResult

if TYPE_CHECKING:
    from ratchet.rollouts.trajectory import Trajectory


def summarise_answers(
    indices: Mapping[str, int], trajectories: Sequence[Trajectory], seats: Sequence[str] = ()
) -> TestResult:
    """Summarise completions of tasks; ``indices``: a task's id → its index in the dataset.

    Each completion has one row and equal weight in the means, however often its conversation was
    rewritten. Parts of the reward and metrics are averaged by name. The evaluator's metrics are
    also columns of the table. A match of a game with ``seats`` has one row, with the reward of
    each.
    """
    if seats:
        return _summarise_matches(indices, trajectories, seats)
    episodes = list(_by_attempt(trajectories).values())
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


def _by_attempt(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    attempts: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        attempts.setdefault(trajectory.attempt_id, []).append(trajectory)
    return attempts


def _summarise_matches(
    indices: Mapping[str, int], trajectories: Sequence[Trajectory], seats: Sequence[str]
) -> TestResult:
    """Summarise matches of a game: means and columns of each seat."""
    matches = list(_by_attempt(trajectories).values())
    table: dict[str, list[Any]] = {
        "datapoint_id": [indices[match[0].task_id] for match in matches],
        "task_id": [match[0].task_id for match in matches],
    }
    lengths = [sum(trajectory.num_written for trajectory in match) for match in matches]
    metrics: Metrics = {"num_datapoints": float(len(set(table["datapoint_id"])))}
    for agent in seats:
        rewards = [match[0].metrics[f"{RETURN}{agent}"] for match in matches]
        table[f"reward.{agent}"] = rewards
        metrics[f"{agent}.mean_episode_reward"] = fmean(rewards)
        last = [{each.agent: each for each in match}.get(agent) for match in matches]
        sides = [each for each in last if each is not None]
        names = dict.fromkeys(name for each in sides for name in each.metrics)
        for name in (name for name in names if not name.startswith(RETURN)):
            values = [each.metrics[name] for each in sides if name in each.metrics]
            metrics[f"{agent}.{name}"] = fmean(values)
    table["response_length"] = lengths
    metrics["mean_response_length"] = fmean(lengths)
    metrics["truncated_fraction"] = fmean(float(match[-1].is_truncated) for match in matches)
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
