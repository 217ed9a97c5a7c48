"""Rollout of one task or match: each seat's conversation and tokens, evaluations and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from ratchet.rollouts.trajectory import FinishReason, Trajectory
from ratchet.scenarios.language_task.task import NUM_TURNS

if TYPE_CHECKING:
    from ratchet.language_models.engines.rollouts import Completion, SampleRequest
    from ratchet.language_models.types import ChatMessage
    from ratchet.scenarios.language_task.task import Evaluation, Task


RETURN = "return."
"""Prefix of the metrics of a match with the rewards of all seats, also of those that never act."""


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


class Reply(NamedTuple):
    """Tokens ``start`` to ``stop`` − 1 of a segment, written at a step of the attempt."""

    step: int
    segment: Segment
    start: int
    stop: int


@dataclass
class Seat:
    """An agent's side of an attempt: its conversation, and what its model read and wrote.

    Attributes
    ----------
    role
        The role that a match drew for the agent, if any.
    messages
        The complete conversation.
    unread
        The messages at its end that the model has not read.
    is_rewritten
        Whether the messages before those have changed, so that all are read again.
    reply
        The last reply.
    is_cut_off
        Whether that reply was too long.
    """

    role: str = ""
    messages: list[ChatMessage] = field(default_factory=list)
    unread: tuple[ChatMessage, ...] = ()
    is_rewritten: bool = True
    segments: list[Segment] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    reply: str = ""
    is_cut_off: bool = False
    evaluation: Evaluation | None = None
    finish_reason: FinishReason = "stop"

    def hear(
        self, messages: Sequence[ChatMessage], history: Sequence[ChatMessage] | None = None
    ) -> None:
        """Append messages, to the ``history`` that replaces the conversation if given."""
        self.is_rewritten = history is not None
        if history is not None:
            self.messages[:] = history
        self.messages += messages
        self.unread = tuple(messages)

    @property
    def num_turns(self) -> int:
        """The number of replies."""
        return len(self.replies)

    @property
    def score(self) -> Evaluation:
        """The evaluation of a finished attempt."""
        assert self.evaluation is not None
        return self.evaluation


class Attempt(ABC):
    """State of a rollout; reset when the rollout is retried."""

    seats: dict[str, Seat]
    acting: tuple[str, ...] = ()
    """The seats that are to reply; none once it is over."""
    num_steps: int = 0
    """How many times seats have replied."""

    @abstractmethod
    def advance(self) -> None:
        """Apply the replies of all acting seats; score the attempt at its end."""

    @abstractmethod
    def end(self, reason: FinishReason) -> None:
        """End and score the attempt."""

    def metrics(self) -> Mapping[str, float]:
        """Return metrics that concern all seats."""
        return {}


class Redraw(NamedTuple):
    """The turn of a rollout that is sampled again, for the ``number``-th time."""

    original: Rollout
    agent: str
    turn: int
    number: int


@dataclass
class Rollout:
    """One rollout of a group that is compared.

    Attributes
    ----------
    redraw
        The turn that distinguishes it from the rollout that it repeats; None for originals.
    completions
        Completions so far by agent and request, which are not sent again; None: not stored.
    """

    task: Task
    group_id: str
    attempt_id: str
    redraw: Redraw | None = None
    completions: dict[tuple[str, SampleRequest], Completion] | None = None
    num_failures: int = 0
    is_dropped: bool = False
    attempt: Attempt | None = None

    @property
    def is_active(self) -> bool:
        """Whether someone is to act."""
        return self.attempt is not None and not self.is_dropped and bool(self.attempt.acting)

    @property
    def played(self) -> Attempt:
        """The current attempt of a rollout that has started."""
        assert self.attempt is not None
        return self.attempt

    def seed_name(self, purpose: str, agent: str) -> str:
        """Return the name of a seed: a redrawn rollout's are its original's, but for the turn."""
        original = self if self.redraw is None else self.redraw.original
        again = f"/again{original.num_failures}" if original.num_failures else ""
        name = f"{original.attempt_id}/{purpose}{again}"
        if self.redraw is None or (self.redraw.agent, str(self.redraw.turn)) != (agent, purpose):
            return name
        return f"{name}/redraw{self.redraw.number}.{self.num_failures}"

    def trajectories(
        self,
        group_id: Callable[[Rollout, str], str],
        *,
        is_validation: bool,
        model_version: int,
    ) -> list[Trajectory]:
        """Return the trajectories of each seat with a model.

        One, or one for each time that its conversation was rewritten. ``group_id`` names the group
        in which a seat is compared. In tests their metrics contain the rewards of all seats.
        """
        seats, metrics = self.played.seats, dict(self.played.metrics())
        if len(seats) > 1 and is_validation:
            metrics |= {f"{RETURN}{name}": seat.score.reward for name, seat in seats.items()}
        return [
            Trajectory(
                tokens=segment.tokens,
                loss_mask=segment.loss_mask,
                logprobs=segment.logprobs,
                reward=seat.score.reward,
                scores=dict(seat.score.parts),
                group_id=group_id(self, name),
                run_id=self.group_id,
                attempt_id=self.attempt_id,
                task_id=self.task.task_id,
                agent=name,
                role=seat.role,
                finish_reason=seat.finish_reason,
                is_truncated=seat.finish_reason == "length",
                is_validation=is_validation,
                model_version=model_version,
                metrics={**metrics, **seat.score.metrics, NUM_TURNS: float(seat.num_turns)},
            )
            for name, seat in seats.items()
            for segment in seat.segments
        ]


def complete_trajectories(
    rollouts: Sequence[Rollout],
    group_id: Callable[[Rollout, str], str],
    *,
    is_validation: bool,
    model_version: int,
) -> list[Trajectory]:
    """Return the trajectories of all rollouts that were not dropped, in order."""
    return [
        trajectory
        for rollout in rollouts
        if not rollout.is_dropped
        for trajectory in rollout.trajectories(
            group_id, is_validation=is_validation, model_version=model_version
        )
    ]


def rollout_metrics(
    rollouts: Sequence[Rollout], trajectories: Sequence[Trajectory]
) -> dict[str, float]:
    """Return metrics that trajectories don't contain: counts, and means of rollouts.

    Trainers report the others (scores, lengths, reasons of ends) for the rollouts that they use.
    Means are those of originals: long rollouts are redrawn more often.
    """
    left = [rollout for rollout in rollouts if not rollout.is_dropped]
    counts = {
        "rollouts": len(left),
        "trajectories": len(trajectories),
        "failures": sum(rollout.num_failures for rollout in rollouts),
        "dropped": len(rollouts) - len(left),
    }
    completed = [rollout.played for rollout in left if rollout.redraw is None]
    metrics = {f"rollout/num_{name}": float(count) for name, count in counts.items()}
    if not completed:
        return metrics
    names = list(completed[0].seats)
    if len(names) == 1:
        metrics["rollout/reward"] = _mean_reward(completed, names[0])
    else:
        metrics |= {f"rollout/{name}/reward": _mean_reward(completed, name) for name in names}
    turns = [sum(seat.num_turns for seat in attempt.seats.values()) for attempt in completed]
    metrics["rollout/turns"] = fmean(turns)
    return metrics


def _mean_reward(attempts: Sequence[Attempt], name: str) -> float:
    return fmean(attempt.seats[name].score.reward for attempt in attempts)
