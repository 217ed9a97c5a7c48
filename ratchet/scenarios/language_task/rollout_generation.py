"""Generation of rollouts: groups of episodes with a model, retries, and failed tasks.

Generated tokens are never tokenized again: their ids are appended unchanged, and the environment's
text is encoded and appended with mask 0. Seeds depend only on a rollout's group, index and turn, so
that concurrent rollouts do not affect each other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from ratchet.errors import DataError
from ratchet.games.match import Chooser, Game
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.types import ChatMessage
from ratchet.scenarios.language_task.attempts import MatchAttempt, TaskAttempt
from ratchet.scenarios.language_task.redraws import credited_trajectories, redraw_rollouts
from ratchet.scenarios.language_task.rollout import (
    Reply,
    Rollout,
    Segment,
    complete_trajectories,
    rollout_metrics,
)
from ratchet.scenarios.language_task.task import prompt_format
from ratchet.seeding import derive_seed, numpy_generator

if TYPE_CHECKING:
    from ratchet.language_models.engines.rollouts import Completion, RolloutEngine
    from ratchet.language_models.local.tokenizer import ChatTokenizer
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.scenarios.language_task.environments.base import LanguageEnvironment
    from ratchet.scenarios.language_task.evaluators import Evaluator
    from ratchet.scenarios.language_task.task import PromptFormat, Task

_LOGGER = logging.getLogger(__name__)


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
class ModelPlayer:
    """A language model that replies for a seat."""

    engine: RolloutEngine
    tokenizer: ChatTokenizer
    sampling: Sampling


@dataclass(frozen=True)
class Rules:
    """The game, and the format of its prompts.

    Attributes
    ----------
    environment
        The environment of tasks, or a game of several seats.
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

    environment: LanguageEnvironment | Game
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

    def group_id(self, rollout: Rollout, agent: str) -> str:
        """Return the group in which an agent's side of a rollout is compared: seats are apart."""
        is_game = isinstance(self.environment, Game)
        return f"{rollout.group_id}/{agent}" if is_game else rollout.group_id


@dataclass(frozen=True)
class GeneratedRollouts:
    """Generated rollouts: trajectories in the order of the tasks, and metrics."""

    trajectories: list[Trajectory]
    metrics: dict[str, float] = field(default_factory=dict)


def play(
    tasks: Sequence[Task],
    *,
    players: Mapping[str, ModelPlayer | Chooser | None],
    rules: Rules,
    group_size: int,
    iteration: int,
    seed: int,
    redraws: Mapping[str, int] = MappingProxyType({}),
    failure: FailurePolicy | None = None,
    attempt: int = 0,
    is_validation: bool = False,
    model_version: int = 0,
) -> GeneratedRollouts:
    """Generate ``group_size`` rollouts of each task concurrently.

    All seats that are to reply at the same time are one call of their engine. Groups are named by
    iteration and task, and by ``attempt`` if an iteration is retried. ``players`` are the models
    by seat, or functions that choose; other seats choose legal actions at random. ``redraws``: how
    often each turn of an agent is sampled again. ``failure`` handles errors of single rollouts
    (default: :class:`FailFast`); engine errors are raised.
    """
    policy = FailFast() if failure is None else failure
    stage = "test" if is_validation else "roll_out"
    generator = _Generator(
        players=players,
        writers={
            name: prompt_format(player.tokenizer, chat=rules.chat)
            for name, player in players.items()
            if isinstance(player, ModelPlayer)
        },
        rules=rules,
        failure=policy,
        derive=lambda name, agent: derive_seed(seed, stage, iteration, name, agent),
    )
    groups = _group_ids(tasks, iteration, attempt)
    rollouts = [
        Rollout(task, group, f"{group}/{index}", completions={} if redraws else None)
        for task, group in zip(tasks, groups, strict=True)
        for index in range(group_size)
    ]
    generator.run(rollouts)
    dropped = Counter(rollout.group_id for rollout in rollouts if rollout.is_dropped)
    for group, count in dropped.items():
        policy.check_group(group, group_size - count, group_size)
    if redraws:
        redrawn = redraw_rollouts(rollouts, redraws)
        generator.run(redrawn)
        rollouts += redrawn
        trajectories = credited_trajectories(
            rollouts, redraws, rules.group_id, model_version=model_version
        )
    else:
        trajectories = complete_trajectories(
            rollouts, rules.group_id, is_validation=is_validation, model_version=model_version
        )
    return GeneratedRollouts(trajectories, rollout_metrics(rollouts, trajectories))


@dataclass
class _Generator:
    """Runs rollouts to their ends concurrently."""

    players: Mapping[str, ModelPlayer | Chooser | None]
    writers: Mapping[str, PromptFormat]
    rules: Rules
    failure: FailurePolicy
    derive: Callable[[str, str], int]
    """Returns a seed for a name and an agent."""
    _openings: dict[tuple[str, tuple[ChatMessage, ...]], list[int]] = field(default_factory=dict)
    """Cache of encoded prompts, which rollouts of a group share."""

    def run(self, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            self._guard(self._begin, rollout)
        while active := [rollout for rollout in rollouts if rollout.is_active]:
            replies = self._generate(active)
            for rollout in active:
                self._guard(self._go_on, rollout, replies[rollout.attempt_id])

    def _generate(self, active: Sequence[Rollout]) -> dict[str, dict[str, Completion]]:
        """Call each engine at most once; return the replies by rollout and agent."""
        waiting: dict[int, tuple[RolloutEngine, list[tuple[Rollout, str, SampleRequest]]]] = {}
        replies: dict[str, dict[str, Completion]] = {each.attempt_id: {} for each in active}
        for rollout in active:
            for agent in rollout.played.acting:
                request = self._request(rollout, agent)
                if (agent, request) in (stored := rollout.completions or {}):
                    replies[rollout.attempt_id][agent] = stored[agent, request]
                    continue
                engine = self._player(agent).engine
                waiting.setdefault(id(engine), (engine, []))[1].append((rollout, agent, request))
        for engine, turns in waiting.values():
            completions = engine.generate([request for _, _, request in turns])
            for (rollout, agent, request), completion in zip(turns, completions, strict=True):
                replies[rollout.attempt_id][agent] = completion
                if rollout.completions is not None:
                    rollout.completions[agent, request] = completion
        return replies

    def _guard(
        self, step: Callable[..., None], rollout: Rollout, *replies: Mapping[str, Completion]
    ) -> None:
        """Run a rollout's step; apply the policy if it fails."""
        while True:
            try:
                return step(rollout, *replies)
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
                step, replies = self._begin, ()

    def _player(self, agent: str) -> ModelPlayer:
        player = self.players[agent]
        assert isinstance(player, ModelPlayer)  # attempts ask models only
        return player

    def _seed(self, rollout: Rollout, purpose: str, agent: str) -> int:
        return self.derive(rollout.seed_name(purpose, agent), agent)

    def _begin(self, rollout: Rollout) -> None:
        rules, environment = self.rules, self.rules.environment
        if isinstance(environment, Game):
            choosers = {
                agent: self._at_random(rollout, agent) if player is None else player
                for agent, player in self.players.items()
                if not isinstance(player, ModelPlayer)
            }
            rollout.attempt = MatchAttempt(
                rollout.task, environment, rules.opening, choosers, max_turns=rules.max_turns
            )
        else:
            (agent,) = self.players
            rollout.attempt = TaskAttempt(
                rollout.task,
                agent,
                environment,
                rules.evaluator,
                rules.opening,
                max_turns=rules.max_turns,
                seed=self._seed(rollout, "environment", agent),
            )
        self._read_new(rollout)

    def _at_random(self, rollout: Rollout, agent: str) -> Chooser:
        """Return a function that chooses actions at random."""
        generator = numpy_generator(self._seed(rollout, "choices", agent), "choices")
        return lambda view: list(view.legal)[int(generator.integers(len(view.legal)))]

    def _read_new(self, rollout: Rollout) -> None:
        """Encode what the acting seats have not read; without room for a reply, end the attempt."""
        attempt = rollout.played
        for agent in attempt.acting:
            seat, writer = attempt.seats[agent], self.writers[agent]
            new_tokens = None
            if not seat.is_rewritten:
                before = seat.messages[: len(seat.messages) - len(seat.unread) - 1]
                new_tokens = writer.more(before, seat.reply, seat.unread)
            if new_tokens is None:
                self._begin_segment(rollout, agent)
                continue
            segment, max_length = seat.segments[-1], self.rules.max_sequence_length
            if max_length is not None and len(segment.tokens) + len(new_tokens) >= max_length:
                return attempt.end("length")
            segment.read(new_tokens)
        return None

    def _begin_segment(self, rollout: Rollout, agent: str) -> None:
        seat = rollout.played.seats[agent]
        segment, messages = Segment(), tuple(seat.messages)
        if (agent, messages) not in self._openings:
            self._openings[agent, messages] = self.writers[agent].prompt(messages)
        segment.read(self._openings[agent, messages])
        max_length = self.rules.max_sequence_length
        if max_length is not None and len(segment.tokens) >= max_length:
            raise DataError(
                f"task {rollout.task.task_id!r}: its prompt has {len(segment.tokens)} tokens, which"
                f" leaves no room for a reply in a max_sequence_length of {max_length}. Raise that,"
                " or leave the task out."
            )
        seat.segments.append(segment)

    def _room(self, segment: Segment, max_tokens: int) -> int:
        """The tokens that the next reply may have."""
        max_length = self.rules.max_sequence_length
        return (
            max_tokens if max_length is None else min(max_tokens, max_length - len(segment.tokens))
        )

    def _request(self, rollout: Rollout, agent: str) -> SampleRequest:
        seat, sampling = rollout.played.seats[agent], self._player(agent).sampling
        segment = seat.segments[-1]
        return SampleRequest(
            prompt=tuple(segment.tokens),
            max_tokens=self._room(segment, sampling.max_tokens),
            seed=self._seed(rollout, str(seat.num_turns), agent),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
        )

    def _go_on(self, rollout: Rollout, replies: Mapping[str, Completion]) -> None:
        """Record the replies, and continue with their consequences."""
        attempt = rollout.played
        for agent, completion in replies.items():
            seat = attempt.seats[agent]
            segment = seat.segments[-1]
            room = self._room(segment, self._player(agent).sampling.max_tokens)
            written = completion.tokens[:room]
            start = len(segment.tokens)
            segment.write(written, completion.log_probs[:room])
            seat.replies.append(Reply(attempt.num_steps, segment, start, len(segment.tokens)))
            seat.reply = self.writers[agent].tokenizer.decode(written)
            seat.messages.append(ChatMessage("assistant", seat.reply))
            is_longer = len(completion.tokens) > room
            seat.is_cut_off = completion.finish_reason == "length" or is_longer
        attempt.num_steps += 1
        attempt.advance()
        self._read_new(rollout)


def _group_ids(tasks: Sequence[Task], iteration: int, attempt: int) -> list[str]:
    """Name the groups: a task that is repeated in one iteration has a separate group."""
    seen: Counter[str] = Counter()
    names = []
    for task in tasks:
        count, seen[task.task_id] = seen[task.task_id], seen[task.task_id] + 1
        when = f"{iteration}.{attempt}" if attempt else str(iteration)
        names.append(f"{when}/{task.task_id}" + (f"#{count}" if count else ""))
    return names
