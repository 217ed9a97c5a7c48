"""Rollout of one task: turns, tokens, evaluation and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from ratchet.rollouts.trajectory import Trajectory
from ratchet.scenarios.language_task.task import NUM_TURNS

if TYPE_CHECKING:
    from ratchet.language_models.types import ChatMessage
    from ratchet.scenarios.language_task.environments.base import Episode
    from ratchet.scenarios.language_task.task import Evaluation, Task


@dataclass
class Segment:
    """Tokens in a row, some read and some written, with the sampler's log-probabilities."""

    tokens: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def read(self, ids: Sequence[int]) -> None:
        """Append tokens that the model reads."""
        self._append(ids, 0, [0.0] * len(ids))

    def write(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append generated tokens, id by id."""
        self._append(ids, 1, logprobs)

    def _append(self, ids: Sequence[int], mask: int, logprobs: Sequence[float]) -> None:
        self.tokens += ids
        self.loss_mask += [mask] * len(ids)
        self.logprobs += logprobs


@dataclass
class Attempt:
    """Result of a rollout so far; reset when the rollout is retried."""

    episode: Episode
    messages: list[ChatMessage]
    segments: list[Segment]
    num_turns: int = 0
    reply: str = ""
    is_over: bool = False
    finish_reason: Literal["stop", "length", "environment"] = "stop"
    evaluation: Evaluation | None = None

    def end(self, reason: Literal["stop", "length", "environment"]) -> None:
        """Record the end of the conversation and its reason."""
        self.is_over, self.finish_reason = True, reason


@dataclass
class Rollout:
    """One rollout of a group that is compared."""

    task: Task
    group_id: str
    attempt_id: str
    num_failures: int = 0
    is_dropped: bool = False
    attempt: Attempt | None = None

    @property
    def is_active(self) -> bool:
        """Whether its model is to reply."""
        return self.attempt is not None and not (self.is_dropped or self.attempt.is_over)

    @property
    def played(self) -> Attempt:
        """The current attempt of a rollout that has started."""
        assert self.attempt is not None
        return self.attempt

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation of a finished rollout."""
        assert self.played.evaluation is not None
        return self.played.evaluation

    def trajectories(
        self, agent: str, *, is_validation: bool, model_version: int
    ) -> list[Trajectory]:
        """Return one trajectory, or one for each time that the conversation was rewritten."""
        attempt, evaluation = self.played, self.evaluation
        metrics = {**attempt.episode.metrics(), **evaluation.metrics}
        return [
            Trajectory(
                tokens=segment.tokens,
                loss_mask=segment.loss_mask,
                logprobs=segment.logprobs,
                reward=evaluation.reward,
                scores=dict(evaluation.parts),
                group_id=self.group_id,
                run_id=self.group_id,
                attempt_id=self.attempt_id,
                task_id=self.task.task_id,
                agent=agent,
                finish_reason=attempt.finish_reason,
                is_truncated=attempt.finish_reason == "length",
                is_validation=is_validation,
                model_version=model_version,
                metrics={**metrics, NUM_TURNS: float(attempt.num_turns)},
            )
            for segment in attempt.segments
        ]


def rollout_metrics(
    rollouts: Sequence[Rollout], trajectories: Sequence[Trajectory]
) -> dict[str, float]:
    """Return metrics that trajectories don't contain: counts, and means of rollouts.

    Trainers report the others (scores, lengths, reasons of ends) for the rollouts that they use.
    """
    completed = [rollout for rollout in rollouts if not rollout.is_dropped]
    counts = {
        "rollouts": len(completed),
        "trajectories": len(trajectories),
        "failures": sum(rollout.num_failures for rollout in rollouts),
        "dropped": len(rollouts) - len(completed),
    }
    metrics = {f"rollout/num_{name}": float(count) for name, count in counts.items()}
    if not completed:
        return metrics
    metrics["rollout/reward"] = fmean(rollout.evaluation.reward for rollout in completed)
    metrics["rollout/turns"] = fmean(rollout.played.num_turns for rollout in completed)
    return metrics
