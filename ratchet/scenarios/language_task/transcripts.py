"""Transcripts of answers to tasks for the report: prompts, replies and rewards.

Imported when they are written (:meth:`LanguageTaskInstance.transcripts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from ratchet.algorithms.replayed_credit import REDRAWN
from ratchet.rollouts.transcript_content import Transcript
from ratchet.scenarios.language_task.attempts import SEED
from ratchet.scenarios.language_task.rollout import RETURN
from ratchet.scenarios.language_task.task import EXACT_MATCH

if TYPE_CHECKING:
    from ratchet.language_models.local.tokenizer import ChatTokenizer
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.scenarios.language_task.task import Task

    CreditedSegment: TypeAlias = tuple[Trajectory, float | None]

ENVIRONMENT = "environment"


def task_transcripts(
    trajectories: Sequence[Trajectory],
    tasks: Iterable[Task],
    tokenizers: Mapping[str, ChatTokenizer],
) -> list[Transcript]:
    """Return the transcript of each answer, grouped by task.

    Each is like a line of :func:`ratchet.rollouts.transcript_content.report_transcripts`, but
    without decisions: ``question`` is the task's prompt, ``solution`` the correct answer,
    ``correct`` None if the evaluator doesn't determine it, and ``scores`` the parts of the reward.
    A round consists of the environment's messages and the model's reply. The rounds of a match are
    those of all seats: each one's view, in a channel of its name, and its reply. A reply that was
    sampled in a group has a ``credit``: its reward minus the mean of the others of the group.
    """
    known = {task.task_id: (datapoint_id, task) for datapoint_id, task in enumerate(tasks)}
    runs: dict[str, list[CreditedSegment]] = {}
    for trajectory, credit in zip(trajectories, _credits(trajectories), strict=True):
        if not trajectory.metrics.get(REDRAWN):
            runs.setdefault(trajectory.attempt_id, []).append((trajectory, credit))
    transcripts = [
        _transcript(number, segments, *known[segments[0][0].task_id], tokenizers)
        for number, segments in enumerate(runs.values())
    ]
    done = {one["datapoint_id"] for one in transcripts if one["correct"]}
    for one in transcripts:
        one["always_failed"] = one["correct"] is not None and one["datapoint_id"] not in done
    return sorted(transcripts, key=itemgetter("datapoint_id", "rollout"))


def _credits(trajectories: Sequence[Trajectory]) -> Iterator[float | None]:
    """Yield each reward minus the mean of the others in its group; None in tests or without."""
    groups: dict[str, dict[str, float]] = {}  # the reward of each attempt
    for one in trajectories:
        groups.setdefault(one.group_id, {})[one.attempt_id] = one.reward
    for one in trajectories:
        others = [r for name, r in groups[one.group_id].items() if name != one.attempt_id]
        yield one.reward - fmean(others) if others and not one.is_validation else None


def _transcript(
    number: int,
    segments: Sequence[CreditedSegment],
    datapoint_id: int,
    task: Task,
    tokenizers: Mapping[str, ChatTokenizer],
) -> Transcript:
    last, _ = segments[-1]
    is_game = SEED in task.info
    rewards = {segment.agent: segment.reward for segment, _ in segments}
    for segment, _ in segments:
        for name, reward in segment.metrics.items():
            if name.startswith(RETURN):  # of seats that did not act, too
                rewards[name.removeprefix(RETURN)] = reward
    rounds = _match_rounds(segments, tokenizers) if is_game else _rounds(segments, tokenizers)
    right = last.metrics.get(EXACT_MATCH)
    roles = {segment.agent: segment.role for segment, _ in segments if segment.role}
    return {
        **({"roles": roles} if roles else {}),
        "rollout": number,
        "datapoint_id": datapoint_id,
        "task_id": task.task_id,
        "question": "\n\n".join(message.content for message in task.messages),
        "solution": task.answer,
        "correct": None if right is None else right == 1.0,
        "rewards": rewards,
        "scores": dict(last.scores),
        "finish_reason": last.finish_reason,
        "rounds": list(rounds),
    }


def _match_rounds(
    segments: Sequence[CreditedSegment], tokenizers: Mapping[str, ChatTokenizer]
) -> Iterator[dict[str, Any]]:
    """Iterate over the seats' turns by number: each seat's first, second, and so on."""
    sides: dict[str, list[CreditedSegment]] = {}
    for segment, credit in segments:
        sides.setdefault(segment.agent, []).append((segment, credit))
    turns = [list(_rounds(side, tokenizers, private=seat)) for seat, side in sides.items()]
    for number, together in enumerate(zip_longest(*turns)):
        messages = [message for turn in together if turn for message in turn["messages"]]
        yield {"round": number, "messages": messages, "raw": {}, "decision": {}}


def _rounds(
    segments: Sequence[CreditedSegment], tokenizers: Mapping[str, ChatTokenizer], private: str = ""
) -> Iterator[dict[str, Any]]:
    """Iterate over the replies, each with the messages read since the previous one.

    Those that only the seat ``private`` sees are in a channel of its name, and include the first.
    """
    number, is_prompt, messages = 0, not private, list[dict[str, Any]]()
    shown: list[int] = []
    for segment, credit in segments:
        tokenizer = tokenizers[segment.agent]
        start = len(shown) if segment.tokens[: len(shown)] == shown else 0
        shown = segment.tokens
        pairs = zip(segment.loss_mask[start:], segment.tokens[start:], strict=True)
        for wrote, part in groupby(pairs, key=itemgetter(0)):
            text = tokenizer.decode([token for _, token in part])
            who, channel = (segment.agent, "main") if wrote else (ENVIRONMENT, private or "main")
            if not is_prompt:
                messages.append({"agent": who, "channel": channel, "text": text})
            is_prompt = False  # shown above, from the task
            if wrote:
                if credit is not None:
                    messages[-1]["credit"] = credit
                yield {"round": number, "messages": messages, "raw": {}, "decision": {}}
                number, messages = number + 1, []
