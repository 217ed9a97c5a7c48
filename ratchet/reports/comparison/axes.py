"""What a run had spent when a value was measured: iterations, frames, tokens or calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from ratchet.reports.comparison.runs import ComparedRun
from ratchet.statistics.aggregates import FloatArray
from ratchet.tracking.manifest import ITERATION_STAGES
from ratchet.tracking.metrics import MetricPoint

AxisName = Literal["frames", "tokens", "calls", "iterations"]
AXES: tuple[AxisName, ...] = get_args(AxisName)
"""In the order in which they are chosen: what compares most fairly first."""

_ORDER = {stage: place for place, stage in enumerate(ITERATION_STAGES)}
_WHOLE = len(_ORDER)  # a stage that does a whole iteration


class Spending:
    """How much of one thing a run had spent at each moment."""

    def __init__(self, amounts: Sequence[tuple[int, float]]) -> None:
        ordered = sorted(amounts)
        self._moments = np.array([moment for moment, _ in ordered])
        self._totals = np.concatenate([[0.0], np.cumsum([amount for _, amount in ordered])])

    @property
    def amounts(self) -> FloatArray:
        """What was spent by each of the stages that spend."""
        result: FloatArray = np.diff(self._totals)
        return result

    def at(self, points: Sequence[MetricPoint]) -> list[float]:
        """Return what had been spent when each point was measured, its own stage included."""
        moments = [_moment(point.stage, point.iteration) for point in points]
        found: list[float] = self._totals[
            np.searchsorted(self._moments, moments, side="right")
        ].tolist()
        return found


def spending(run: ComparedRun, axis: Literal["frames", "tokens", "calls"]) -> Spending | None:
    """Return what a run had spent of something by when; None if it has not recorded that.

    Frames are those that TorchRL has counted, or ``rl.frames_per_batch`` an iteration; tokens those
    of prompts, answers and fine-tuning; calls those to chat models. What tests use is not counted.
    """
    if axis == "frames":
        amounts = _counted_frames(run) or _played_frames(run)
    else:
        spent = {"calls": _calls, "tokens": _tokens}[axis]
        amounts = [
            (_moment(point.stage, point.iteration), amount)
            for point in run.points
            if (amount := spent(point))
        ]
    return Spending(amounts) if amounts else None


def _calls(point: MetricPoint) -> float:
    return point.values.get("calls", 0.0) if point.stage == "sample_rollouts" else 0.0


def _tokens(point: MetricPoint) -> float:
    """Return the tokens of one stage of one iteration; 0 if it is none that learns."""
    values = point.values
    if point.stage in ("sample_rollouts", "await_fine_tune_jobs"):
        names = ("prompt_tokens", "completion_tokens", "training_tokens")
        return sum(values.get(name, 0.0) for name in names)
    if point.stage == "train" and "rollout/num_trajectories" in values:
        lengths = ("prompt_length/mean", "response_length/mean")
        return values["rollout/num_trajectories"] * sum(values.get(name, 0.0) for name in lengths)
    return 0.0


def _played_frames(run: ComparedRun) -> list[tuple[int, float]]:
    """Return what each iteration of training has played; nothing if it does not play frames."""
    frames = _frames_per_iteration(run.hyper_params)
    return [
        (_moment(point.stage, point.iteration), frames)
        for point in run.points
        if frames and point.stage == "train" and "num_episodes" in point.values
    ]


def _frames_per_iteration(hyper_params: Mapping[str, object]) -> float:
    """Return how many frames an iteration plays; none if parameters alone do not say."""
    rl = hyper_params.get("rl")
    if not isinstance(rl, Mapping) or rl.get("rollouts_per_iteration") is not None:
        return 0.0
    return float(rl.get("frames_per_batch") or 0.0)


def _counted_frames(run: ComparedRun) -> list[tuple[int, float]]:
    """Return how many frames each iteration has added to those that were counted."""
    counted = sorted(
        (_moment(point.stage, point.iteration), point.values["collected_frames"])
        for point in run.points
        if point.stage == "train" and "collected_frames" in point.values
    )
    before = [0.0, *(total for _, total in counted)]
    return [(moment, total - before[k]) for k, (moment, total) in enumerate(counted)]


def _moment(stage: str, iteration: int) -> int:
    """Return a number that rises as stages of iterations are done."""
    return iteration * (_WHOLE + 1) + _ORDER.get(stage.partition("-")[0], _WHOLE)
