"""Generation of rollouts: groups of episodes with a model, retries, and failed tasks.

Generated tokens are never tokenized again: their ids are appended unchanged, and the environment's
text is encoded and appended with mask 0. Seeds depend only on a rollout's group, index and turn, so
that concurrent rollouts do not affect each other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ratchet.errors import DataError, RatchetError, RolloutError, TaskCodeError
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.types import ChatMessage
from ratchet.plugins import custom_code_location, readable_name
from ratchet.scenarios.language_task.evaluators import checked
from ratchet.scenarios.language_task.rollout import Attempt, Rollout, Segment, rollout_metrics
from ratchet.scenarios.language_task.task import check_names, prompt_format
from ratchet.seeding import derive_seed

if TYPE_CHECKING:
    from ratchet.language_models.engines.rollouts import Completion, RolloutEngine
    from ratchet.language_models.local.tokenizer import ChatTokenizer
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.scenarios.language_task.environments.base import LanguageEnvironment
    from ratchet.scenarios.language_task.evaluators import Evaluator
    from ratchet.scenarios.language_task.task import Evaluation, PromptFormat, Task

_TRANSIENT = (OSError, EOFError)
"""Errors that may not recur, including network errors."""

_LOGGER = logging.getLogger(__name__)


@contextmanager
def blamed(who: str, task_id: str) -> Iterator[None]:
    """Add the responsible code and the task to an error of custom code."""
    try:
        yield
    except (RatchetError, MemoryError):
        raise
    except Exception as error:
        kind = RolloutError if isinstance(error, _TRANSIENT) else TaskCodeError
        raise kind(
            f"{who}, task {task_id!r}: {type(error).__name__}: {error}"
            f" ({custom_code_location(error)}). Correct it; language.failures sets the handling"
            " of failed episodes."
        ) from error


class FailurePolicy:
    """Policy for failed rollouts; the base class raises their error."""

    drops: bool = False
    """Whether a rollout that failed after all retries is dropped; else its error is raised."""

    def plays_again(self, num_failures: int) -> bool:
        """Return whether a rollout with this number of failures is retried."""
        return False

    def check_group(self, group_id: str, left: int, size: int) -> None:
        """Check that enough of a group is left. Raises DataError if not."""


class FailFast(FailurePolicy):
    """The first failure ends it all."""


@dataclass(frozen=True)
class Retry(FailurePolicy):
    """Retries rollouts with different seeds, up to ``num_retries`` times."""

    num_retries: int

    def plays_again(self, num_failures: int) -> bool:
        """Return whether there are tries left."""
        return num_failures <= self.num_retries


@dataclass(frozen=True)
class MinimumSuccesses(FailurePolicy):
    """Drops failed rollouts, if at least ``fewest`` of the group remain."""

    fewest: int
    drops = True

    def check_group(self, group_id: str, left: int, size: int) -> None:
        """Check that enough rollouts succeeded; all of them, in smaller groups."""
        required = min(self.fewest, size)
        if left < required:
            raise DataError(
                f"group {group_id}: {size - left} of {size} rollouts failed, expected at least"
                f" {required} that did not. The log has their errors."
            )


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters: ``max_tokens`` limits one reply."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class Rules:
    """The game, and the format of its prompts.

    Attributes
    ----------
    environment
        The environment of tasks.
    evaluator
        The evaluator; None: the environment's episodes score themselves.
    chat
        Whether messages use the model's chat template, else plain text.
    system_prompt
        The system prompt, if a task has none.
    max_turns
        The most replies, if the environment doesn't set it.
    max_sequence_length
        The most tokens of an episode, with its prompt; None: only replies are limited. Longer
        episodes are truncated before evaluation: evaluators see the truncated conversation.
    """

    environment: LanguageEnvironment
    evaluator: Evaluator | None
    chat: bool = False
    system_prompt: str = ""
    max_turns: int = 10
    max_sequence_length: int | None = None

    def opening(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the first messages for the model, after the system prompt."""
        has_own = any(message.role == "system" for message in messages)
        first = [] if has_own or not self.system_prompt else [self.system_prompt]
        return [*(ChatMessage("system", text) for text in first), *messages]


@dataclass(frozen=True)
class GeneratedRollouts:
    """Generated rollouts: trajectories in the order of the tasks, and metrics."""

    trajectories: list[Trajectory]
    metrics: dict[str, float] = field(default_factory=dict)


def play(
    tasks: Sequence[Task],
    *,
    engine: RolloutEngine,
    tokenizer: ChatTokenizer,
    rules: Rules,
    sampling: Sampling,
    group_size: int,
    iteration: int,
    seed: int,
    agent: str = "agent",
    failure: FailurePolicy | None = None,
    attempt: int = 0,
    is_validation: bool = False,
    model_version: int = 0,
) -> GeneratedRollouts:
    """Generate ``group_size`` rollouts of each task concurrently, with one engine call per turn.

    Groups are named by iteration and task, and by ``attempt`` if an iteration is retried.
    ``failure`` handles errors of single rollouts (default: :class:`FailFast`); engine errors are
    raised.
    """
    policy = FailFast() if failure is None else failure
    stage = "test" if is_validation else "roll_out"
    player = _Player(
        engine=engine,
        writer=prompt_format(tokenizer, chat=rules.chat),
        rules=rules,
        sampling=sampling,
        failure=policy,
        derive=lambda name: derive_seed(seed, stage, iteration, name, agent),
    )
    groups = _group_ids(tasks, iteration, attempt)
    rollouts = [
        Rollout(task, group, f"{group}/{index}")
        for task, group in zip(tasks, groups, strict=True)
        for index in range(group_size)
    ]
    player.play(rollouts)
    dropped = Counter(rollout.group_id for rollout in rollouts if rollout.is_dropped)
    for group, count in dropped.items():
        policy.check_group(group, group_size - count, group_size)
    trajectories = [
        trajectory
        for rollout in rollouts
        if not rollout.is_dropped
        for trajectory in rollout.trajectories(
            agent, is_validation=is_validation, model_version=model_version
        )
    ]
    return GeneratedRollouts(trajectories, rollout_metrics(rollouts, trajectories))


@dataclass
class _Player:
    """Runs rollouts to their ends concurrently."""

    engine: RolloutEngine
    writer: PromptFormat
    rules: Rules
    sampling: Sampling
    failure: FailurePolicy
    derive: Callable[[str], int]
    """Returns a seed for a name."""
    _openings: dict[tuple[ChatMessage, ...], list[int]] = field(default_factory=dict)
    """Cache of encoded prompts, which rollouts of a group share."""

    def play(self, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            self._guard(self._begin, rollout)
        while active := [rollout for rollout in rollouts if rollout.is_active]:
            completions = self.engine.generate([self._request(rollout) for rollout in active])
            for rollout, completion in zip(active, completions, strict=True):
                self._guard(self._go_on, rollout, completion)

    def _guard(self, step: Callable[..., None], rollout: Rollout, *completions: Completion) -> None:
        """Run a rollout's step; apply the policy if it fails."""
        while True:
            try:
                return step(rollout, *completions)
            except Exception as error:
                rollout.num_failures += 1
                rollout.attempt = None
                again = self.failure.plays_again(rollout.num_failures)
                if not (again or self.failure.drops):
                    error.add_note(f"while playing the rollout {rollout.attempt_id}")
                    raise
                what = "it is played again" if again else "it is left out"
                _LOGGER.warning("rollout %s failed, %s: %r", rollout.attempt_id, what, error)
                if not again:
                    rollout.is_dropped = True
                    return None
                step, completions = self._begin, ()

    def _seed(self, rollout: Rollout, purpose: str) -> int:
        again = f"/again{rollout.num_failures}" if rollout.num_failures else ""
        return self.derive(f"{rollout.attempt_id}/{purpose}{again}")

    def _begin(self, rollout: Rollout) -> None:
        with self._environment(rollout):
            episode = self.rules.environment.begin(rollout.task, self._seed(rollout, "environment"))
            opening = episode.opening
        rollout.attempt = Attempt(episode, self.rules.opening(opening), [])
        self._begin_segment(rollout)

    def _begin_segment(self, rollout: Rollout) -> None:
        segment, messages = Segment(), tuple(rollout.played.messages)
        if messages not in self._openings:
            self._openings[messages] = self.writer.prompt(messages)
        segment.read(self._openings[messages])
        max_length = self.rules.max_sequence_length
        if max_length is not None and len(segment.tokens) >= max_length:
            raise DataError(
                f"task {rollout.task.task_id!r}: its prompt has {len(segment.tokens)} tokens, which"
                f" leaves no room for a reply in a max_sequence_length of {max_length}. Raise that,"
                " or leave the task out."
            )
        rollout.played.segments.append(segment)

    def _room(self, segment: Segment) -> int:
        """The tokens that the next reply may have."""
        max_length = self.rules.max_sequence_length
        max_tokens = self.sampling.max_tokens
        return (
            max_tokens if max_length is None else min(max_tokens, max_length - len(segment.tokens))
        )

    def _request(self, rollout: Rollout) -> SampleRequest:
        segment = rollout.played.segments[-1]
        return SampleRequest(
            prompt=tuple(segment.tokens),
            max_tokens=self._room(segment),
            seed=self._seed(rollout, str(rollout.played.num_turns)),
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
        )

    def _go_on(self, rollout: Rollout, completion: Completion) -> None:
        """Record a reply, get the response to it, and score the episode at its end."""
        attempt = rollout.played
        segment = attempt.segments[-1]
        room = self._room(segment)
        written = completion.tokens[:room]
        segment.write(written, completion.log_probs[:room])
        before = tuple(attempt.messages)
        attempt.reply = self.writer.tokenizer.decode(written)
        attempt.messages.append(ChatMessage("assistant", attempt.reply))
        attempt.num_turns += 1
        if completion.finish_reason == "length" or len(completion.tokens) > room:
            attempt.end("length")
        elif attempt.num_turns >= (self.rules.environment.max_turns or self.rules.max_turns):
            attempt.end("stop")
        else:
            self._answer(rollout, before)
        if attempt.is_over:
            attempt.evaluation = self._evaluate(rollout)

    def _answer(self, rollout: Rollout, before: tuple[ChatMessage, ...]) -> None:
        """Append the environment's response to the model's context."""
        attempt = rollout.played
        with self._environment(rollout):
            turn = attempt.episode.answer(attempt.reply)
        if turn.history is not None:
            attempt.messages[:] = turn.history
        attempt.messages += turn.messages
        if turn.done:
            return attempt.end("environment")
        new_tokens = None
        if turn.history is None:
            new_tokens = self.writer.more(before, attempt.reply, turn.messages)
        if new_tokens is None:
            return self._begin_segment(rollout)
        segment = attempt.segments[-1]
        max_length = self.rules.max_sequence_length
        if max_length is not None and len(segment.tokens) + len(new_tokens) >= max_length:
            return attempt.end("length")
        return segment.read(new_tokens)

    def _evaluate(self, rollout: Rollout) -> Evaluation:
        attempt, task = rollout.played, rollout.task
        evaluator = self.rules.evaluator
        environment = readable_name(self.rules.environment)
        if evaluator is not None:
            with blamed(f"evaluator {evaluator.name}", task.task_id):
                evaluation = evaluator.evaluate(task, attempt.reply, attempt.messages)
        else:
            with self._environment(rollout):
                scored = attempt.episode.evaluate(attempt.reply, attempt.messages)
            evaluation = checked(scored, environment, task)
        with self._environment(rollout):
            metrics = attempt.episode.metrics()
        try:
            check_names((*evaluation.parts, *evaluation.metrics), metrics)
        except ValueError as error:
            prefix = f"environment {environment}, task {task.task_id!r}"
            raise DataError(f"{prefix}: {error}.") from error
        return evaluation

    def _environment(self, rollout: Rollout) -> AbstractContextManager[None]:
        """Name the environment in errors of its code."""
        name = readable_name(self.rules.environment)
        return blamed(f"environment {name}", rollout.task.task_id)


def _group_ids(tasks: Sequence[Task], iteration: int, attempt: int) -> list[str]:
    """Name the groups: a task that is repeated in one iteration has a separate group."""
    seen: Counter[str] = Counter()
    names = []
    for task in tasks:
        count, seen[task.task_id] = seen[task.task_id], seen[task.task_id] + 1
        when = f"{iteration}.{attempt}" if attempt else str(iteration)
        names.append(f"{when}/{task.task_id}" + (f"#{count}" if count else ""))
    return names
