"""Usage of training by stage: frames, tokens and labels, from recorded metrics.

Tests are not counted. Everything before the first iteration is: normalisation, pretraining and
imitation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.reports.comparison.runs import ComparedRun, Group
from ratchet.statistics.stratified import FloatArray
from ratchet.tracking.manifest import ITERATION_STAGES
from ratchet.tracking.metrics import MetricPoint

_ORDER = {stage: position for position, stage in enumerate(ITERATION_STAGES)}
_WHOLE = len(_ORDER)  # a stage that covers a complete iteration


class CumulativeCost:
    """Cumulative use of one resource by a run, which had used ``start`` before its iterations."""

    def __init__(self, amounts: Sequence[tuple[int, float]], start: float = 0.0) -> None:
        ordered = sorted(amounts)
        self._moments = np.array([moment for moment, _ in ordered])
        self._totals = start + np.concatenate([[0.0], np.cumsum([each for _, each in ordered])])

    @property
    def amounts(self) -> FloatArray:
        """Amount used by each stage."""
        result: FloatArray = np.diff(self._totals)
        return result

    def at(self, points: Sequence[MetricPoint]) -> list[float]:
        """Return the amount used up to each point, its own stage included."""
        moments = [_moment(point.stage, point.iteration) for point in points]
        amounts: list[float] = self._totals[
            np.searchsorted(self._moments, moments, side="right")
        ].tolist()
        return amounts


def cumulative_cost(
    run: ComparedRun, axis: Literal["frames", "tokens", "calls", "sampled_tokens"]
) -> CumulativeCost | None:
    """Return a run's cumulative use of a resource; None if it is not recorded.

    Frames are counted by TorchRL, or ``rl.frames_per_batch`` per iteration; tokens are those of
    prompts, completions and fine-tuning, sampled tokens those of completions; calls those to chat
    models. Frames of normalisation and imitation count before the first iteration. Tests are not
    counted.
    """
    start = 0.0
    if axis == "frames":
        amounts = _counted_frames(run) or _played_frames(run)
        start = sum(_earlier_frames(run).values())
    else:
        spent = {"calls": _calls, "tokens": _tokens, "sampled_tokens": _sampled_tokens}[axis]
        amounts = [
            (_moment(point.stage, point.iteration), amount)
            for point in run.points
            if (amount := spent(point))
        ]
    return CumulativeCost(amounts, start) if amounts else None


def positions_of(run: ComparedRun, axis: str, points: Sequence[MetricPoint]) -> list[float]:
    """Return the positions of points of a run on an axis of learning curves."""
    if axis == "iterations":
        return [float(point.iteration) for point in points]
    spent = cumulative_cost(run, axis)  # type: ignore[arg-type] # any other axis
    return [] if spent is None else spent.at(points)


def _calls(point: MetricPoint) -> float:
    return point.values.get("calls", 0.0) if point.stage == "sample_rollouts" else 0.0


def _tokens(point: MetricPoint) -> float:
    """Return the tokens of a training stage of one iteration; 0 for other stages."""
    names = ("prompt_tokens", "completion_tokens", "training_tokens")
    return _sum_tokens(point, names, ("prompt_length/mean", "response_length/mean"))


def _sampled_tokens(point: MetricPoint) -> float:
    """Return the completion tokens of a training stage of one iteration; 0 for other stages."""
    return _sum_tokens(point, ("completion_tokens",), ("response_length/mean",))


def _sum_tokens(point: MetricPoint, names: Sequence[str], lengths: Sequence[str]) -> float:
    """Sum counts of calls and jobs, or mean lengths times the number of trajectories."""
    values = point.values
    if point.stage in ("sample_rollouts", "await_fine_tune_jobs"):
        return sum(values.get(name, 0.0) for name in names)
    if point.stage == "train" and "rollout/num_trajectories" in values:
        return values["rollout/num_trajectories"] * sum(values.get(name, 0.0) for name in lengths)
    return 0.0


def _played_frames(run: ComparedRun) -> list[tuple[int, float]]:
    """Return the configured frames of each training iteration; empty without frames."""
    frames = _frames_per_iteration(run.hyper_params)
    return [
        (_moment(point.stage, point.iteration), frames)
        for point in run.points
        if frames and point.stage == "train" and "num_episodes" in point.values
    ]


def _frames_per_iteration(hyper_params: Mapping[str, object]) -> float:
    """Return the frames per iteration; 0 if the parameters do not determine them."""
    rl = hyper_params.get("rl")
    if not isinstance(rl, Mapping) or rl.get("rollouts_per_iteration") is not None:
        return 0.0
    return float(rl.get("frames_per_batch") or 0.0)


def _counted_frames(run: ComparedRun) -> list[tuple[int, float]]:
    """Return the increments of the recorded frame counter by iteration."""
    counted = sorted(
        (_moment(point.stage, point.iteration), point.values["collected_frames"])
        for point in run.points
        if point.stage == "train" and "collected_frames" in point.values
    )
    before = [0.0, *(total for _, total in counted)]
    return [(moment, total - before[k]) for k, (moment, total) in enumerate(counted)]


def _moment(stage: str, iteration: int) -> int:
    """Return a number that increases with each stage of each iteration."""
    return iteration * (_WHOLE + 1) + _ORDER.get(stage.partition("-")[0], _WHOLE)


@dataclass(frozen=True)
class Used:
    """Amounts that training used.

    Attributes
    ----------
    frames
        Steps of environments.
    tokens
        Tokens of prompts, completions and fine-tuning.
    labels
        Uses of a label: episodes rewarded by the datapoint's label, and examples of supervised
        learning in each of its epochs.
    """

    frames: float = 0.0
    tokens: float = 0.0
    labels: float = 0.0

    def __add__(self, other: Used) -> Used:
        return Used(
            self.frames + other.frames, self.tokens + other.tokens, self.labels + other.labels
        )

    def __truediv__(self, count: int) -> Used:
        return Used(self.frames / count, self.tokens / count, self.labels / count)

    def __str__(self) -> str:
        known = {name: amount for name, amount in asdict(self).items() if amount}
        return ", ".join(f"{amount:,.0f} {name}" for name, amount in known.items()) or "–"


def used_by_stage(run: ComparedRun) -> dict[str, Used]:
    """Return the usage of each stage of training that used anything.

    The source of imitated rollouts of another run is counted there, and training of base models not
    at all.
    """
    used_amounts = {stage: Used(frames=frames) for stage, frames in _earlier_frames(run).items()}
    used_amounts |= _warm_up(run)
    size = next(
        (p.values[_TRAIN_SIZE] for p in run.points if _TRAIN_SIZE in p.values), 0.0
    )  # of build_scenario
    has_labels = _has_labels(run)
    for point in run.points:
        family = point.stage.partition("-")[0]
        used = Used(tokens=_tokens(point), labels=_labels(point) if has_labels else 0.0)
        if family == "pretrain":
            used = Used(labels=size)
        if used != Used():
            used_amounts[point.stage] = used_amounts.get(point.stage, Used()) + used
    frames = cumulative_cost(run, "frames")
    if frames is not None:
        used_amounts["train"] = used_amounts.get("train", Used()) + Used(
            frames=float(frames.amounts.sum())
        )
    return used_amounts


def used_in_training(run: ComparedRun) -> Used:
    """Return the usage of a run's training in all stages."""
    return sum(used_by_stage(run).values(), Used())


def used_per_run(group: Group) -> Used:
    """Return the usage of training, averaged over the runs of a group."""
    return sum(map(used_in_training, group.runs), Used()) / len(group.runs)


def _warm_up(run: ComparedRun) -> dict[str, Used]:
    """Return the demonstrations that language models of a run learned from before training.

    All agents without own parameters count as one. A warm-up with ``until_loss`` may end earlier.
    """
    agents = run.hyper_params.get("agents")
    if not isinstance(agents, Mapping):
        return {}
    named = [agent for name, agent in agents.items() if name != DEFAULT_AGENT]
    demonstrations: dict[str, Used] = {}
    for agent in named or [agents[DEFAULT_AGENT]]:
        warm_up = agent.get("warm_up") or {"num_steps": 0}
        if warm_up["num_steps"]:
            stage = WARM_UP if not warm_up["until_loss"] else f"{WARM_UP}, at most"
            examples = float(warm_up["num_steps"] * warm_up["batch_size"])
            demonstrations[stage] = demonstrations.get(stage, Used()) + Used(labels=examples)
    return demonstrations


NORMALIZATION, WARM_UP = "normalization", "warm-up"
_TRAIN_SIZE = "num_datapoints/train"
_SEAT_REWARD = re.compile(r"rollout/[^/]+/reward")


def _has_labels(run: ComparedRun) -> bool:
    """Return whether labels reward the agents: not in environments, and not in games of seats."""
    of_seats = any(_SEAT_REWARD.fullmatch(name) for point in run.points for name in point.values)
    return run.hyper_params.get("scenario") != "gymnasium" and not of_seats


def _labels(point: MetricPoint) -> float:
    """Return the episodes of a training stage that a label rewarded, or supervised examples."""
    if point.stage == "train":
        return point.values.get("num_episodes", 0.0) or point.values.get(
            "rollout/num_trajectories", 0.0
        )
    return point.values.get("num_rollouts", 0.0) if point.stage == "log_stats" else 0.0


def _earlier_frames(run: ComparedRun) -> dict[str, float]:
    """Return the frames before the first iteration by stage, in complete batches.

    Normalisation is fitted on the initial agents' frames; each iteration of imitation collects a
    batch, unless it reads the rollouts of another run.
    """
    frames: dict[str, float] = {}
    rl, each = run.hyper_params.get("rl"), _frames_per_iteration(run.hyper_params)
    if isinstance(rl, Mapping) and rl.get("normalize_observations") and _played_frames(run):
        frames[NORMALIZATION] = math.ceil(float(rl["num_normalization_steps"]) / each) * each
    imitation = run.hyper_params.get("imitation")
    if isinstance(imitation, Mapping) and str(imitation.get("source", "")).startswith("run"):
        return frames
    for point in run.points:
        if point.stage.startswith("imitate-"):
            frames[point.stage] = frames.get(point.stage, 0.0) + each
    return frames
