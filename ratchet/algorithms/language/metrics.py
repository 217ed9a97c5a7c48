"""Metrics of trajectories by family: ``rollout/``, ``critic/``, ``grpo/``, lengths."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from math import fsum, sqrt
from statistics import fmean
from typing import TYPE_CHECKING

from ratchet.algorithms.language.trajectories import trajectory_advantages
from ratchet.algorithms.replayed_credit import REDRAWN

if TYPE_CHECKING:
    from ratchet.rollouts.trajectory import Trajectory


def log_rollout_metrics(
    trajectories: Sequence[Trajectory], metrics: MutableMapping[str, float]
) -> None:
    """Add scores, lengths, finish reasons, model versions and the trajectories' own metrics.

    A metric or score part that only some trajectories have is averaged over these. Trajectories of
    redrawn rollouts count in their number only.
    """
    metrics["rollout/num_trajectories"] = float(len(trajectories))
    trajectories = [one for one in trajectories if not one.metrics.get(REDRAWN)]
    count = len(trajectories)
    if not count:
        return
    _describe("critic/score", [one.reward for one in trajectories], metrics)
    _describe("response_length", [float(one.num_written) for one in trajectories], metrics)
    _describe("prompt_length", [float(one.num_prompt) for one in trajectories], metrics)
    for reason in ("stop", "length", "environment"):
        ended = sum(one.finish_reason == reason for one in trajectories)
        metrics[f"rollout/finish_{reason}"] = ended / count
    metrics["rollout/truncated"] = sum(one.is_truncated for one in trajectories) / count
    versions = [one.model_version for one in trajectories]
    metrics["rollout/model_version/min"] = float(min(versions))
    metrics["rollout/model_version/max"] = float(max(versions))
    parts: dict[str, list[float]] = {}
    for one in trajectories:
        for name, value in one.scores.items():
            parts.setdefault(f"rollout/score/{name}", []).append(value)
        for name, value in one.metrics.items():
            parts.setdefault(f"rollout/{name}", []).append(value)
    for name in sorted(parts):
        metrics[name] = fmean(parts[name])


def log_grpo_metrics(
    trajectories: Sequence[Trajectory],
    metrics: MutableMapping[str, float],
    *,
    use_run_ids: bool = True,
) -> None:
    """Add statistics of groups, rewards and advantages.

    Advantages of trajectories count once for each token that the model wrote, as in the loss.
    """
    groups = trajectory_advantages(trajectories, use_run_ids=use_run_ids).metrics
    metrics.update({f"grpo/{name}": value for name, value in groups.items()})
    _describe("critic/rewards", [one.reward for one in trajectories], metrics)
    log_advantages(trajectories, metrics)


def log_advantages(trajectories: Sequence[Trajectory], metrics: MutableMapping[str, float]) -> None:
    """Add the advantages of tokens that the model wrote, if trajectories have any."""
    advantages: list[float] = []
    for one in trajectories:
        if one.token_advantages is not None:
            pairs = zip(one.token_advantages, one.loss_mask, strict=True)
            advantages += [advantage for advantage, in_mask in pairs if in_mask]
        elif one.advantage is not None:
            advantages += [one.advantage] * one.num_written
    _describe("critic/advantages", advantages, metrics)


def _describe(name: str, values: Sequence[float], metrics: MutableMapping[str, float]) -> None:
    """Add the mean, population deviation, minimum and maximum; none for an empty sequence."""
    if values:
        mean = fmean(values)
        metrics[f"{name}/mean"] = mean
        metrics[f"{name}/std"] = sqrt(fsum((value - mean) ** 2 for value in values) / len(values))
        metrics[f"{name}/min"] = min(values)
        metrics[f"{name}/max"] = max(values)
