"""Attempts at a task, and matches of a game: the consequences of the seats' replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ratchet.errors import DataError, RatchetError, RolloutError, TaskCodeError
from ratchet.games.match import read_action
from ratchet.plugins import custom_code_location, readable_name
from ratchet.scenarios.language_task.evaluators import checked
from ratchet.scenarios.language_task.rollout import Attempt, Seat
from ratchet.scenarios.language_task.task import Evaluation, check_names

if TYPE_CHECKING:
    from ratchet.games.match import Chooser, Game, View
    from ratchet.language_models.types import ChatMessage
    from ratchet.rollouts.trajectory import FinishReason
    from ratchet.scenarios.language_task.environments.base import LanguageEnvironment
    from ratchet.scenarios.language_task.evaluators import Evaluator
    from ratchet.scenarios.language_task.task import Task

_TRANSIENT = (OSError, EOFError)
"""Errors that may not recur, including network errors."""

ILLEGAL = "illegal_reply"
"""The metric of a seat whose reply named no legal action, which ended the match."""
SEED = "seed"
"""The entry of a task's ``info`` with the seed of its match."""


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


class TaskAttempt(Attempt):
    """An attempt of one agent at a task, in an environment that answers its replies."""

    def __init__(
        self,
        task: Task,
        agent: str,
        environment: LanguageEnvironment,
        evaluator: Evaluator | None,
        opening: Callable[[Sequence[ChatMessage]], list[ChatMessage]],
        *,
        max_turns: int,
        seed: int,
    ) -> None:
        self._task, self._evaluator = task, evaluator
        self._max_turns = environment.max_turns or max_turns
        self._name = f"environment {readable_name(environment)}"
        with blamed(self._name, task.task_id):
            self._episode = environment.begin(task, seed)
            messages = self._episode.opening
        self._seat = Seat()
        self._seat.hear(opening(messages), history=())
        self.seats, self.acting = {agent: self._seat}, (agent,)

    def advance(self) -> None:
        """Let the environment answer, unless the reply was too long or the last one."""
        seat = self._seat
        if seat.is_cut_off:
            return self.end("length")
        if seat.num_turns >= self._max_turns:
            return self.end("stop")
        with blamed(self._name, self._task.task_id):
            turn = self._episode.answer(seat.reply)
        seat.hear(turn.messages, turn.history)
        return self.end("environment") if turn.done else None

    def end(self, reason: FinishReason) -> None:
        """End the conversation, and evaluate it."""
        seat, task, evaluator = self._seat, self._task, self._evaluator
        self.acting, seat.finish_reason = (), reason
        if evaluator is not None:
            with blamed(f"evaluator {evaluator.name}", task.task_id):
                evaluation = evaluator.evaluate(task, seat.reply, seat.messages)
        else:
            with blamed(self._name, task.task_id):
                scored = self._episode.evaluate(seat.reply, seat.messages)
            evaluation = checked(scored, self._name.removeprefix("environment "), task)
        try:
            check_names((*evaluation.parts, *evaluation.metrics), self.metrics())
        except ValueError as error:
            raise DataError(f"{self._name}, task {task.task_id!r}: {error}.") from error
        seat.evaluation = evaluation

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the environment's episode."""
        with blamed(self._name, self._task.task_id):
            return self._episode.metrics()


class MatchAttempt(Attempt):
    """A match of a game, in which agents reply with actions.

    ``choosers`` choose the actions of seats without a model, by seat. With more than ``max_turns``
    of a seat the match ends with the rewards so far.
    """

    def __init__(
        self,
        task: Task,
        game: Game,
        opening: Callable[[Sequence[ChatMessage]], list[ChatMessage]],
        choosers: Mapping[str, Chooser],
        *,
        max_turns: int,
    ) -> None:
        self._task, self._game, self._choosers = task, game, choosers
        self._max_turns, self._turns = max_turns, Counter[str]()
        self._opening = opening
        self._name = f"game {readable_name(game)}"
        self._views: dict[str, View] = {}
        with blamed(self._name, task.task_id):
            self._match = game.begin(int(str(task.info[SEED])))
            self.seats = {name: Seat(self._match.role(name)) for name in game.seats}
        self._go_on({})

    def advance(self) -> None:
        """Apply the actions that the replies name; a reply that names none ends the match."""
        actions = {
            name: read_action(self._views[name].legal, self.seats[name].reply)
            for name in self.acting
        }
        illegal = {name for name, action in actions.items() if action is None}
        if illegal:
            is_cut_off = any(self.seats[name].is_cut_off for name in illegal)
            return self._score("length" if is_cut_off else "environment", illegal)
        return self._go_on({name: action for name, action in actions.items() if action is not None})

    def end(self, reason: FinishReason) -> None:
        """End the match with the rewards so far."""
        self._score(reason)

    def _go_on(self, actions: dict[str, int]) -> None:
        """Play until a model is to reply, or until the end."""
        with blamed(self._name, self._task.task_id):
            while True:
                chosen = {
                    name: self._choose(name, view)
                    for name, view in self._views.items()
                    if name in self._choosers
                }
                if actions or chosen:
                    self._match.play({**actions, **chosen})
                views = {name: self._match.view(name) for name in self._match.acting}
                if any(self._turns[name] >= self._max_turns for name in views):
                    return self._score("stop")
                self._turns.update(views.keys())
                self._views = views
                self.acting = tuple(name for name in views if name not in self._choosers)
                if self.acting or not views:
                    break
                actions = {}
        for name in self.acting:
            seat, messages = self.seats[name], views[name].messages
            is_first = not seat.messages
            seat.hear(self._opening(messages) if is_first else messages, () if is_first else None)
        return None if self.acting else self._score("environment")

    def _choose(self, seat: str, view: View) -> int:
        action = self._choosers[seat](view)
        if action not in view.legal:
            raise TaskCodeError(
                f"seat {seat!r}: its function chose {action!r}, expected a legal action:"
                f" {dict(view.legal)}."
            )
        return action

    def _score(self, reason: FinishReason, illegal: Collection[str] = ()) -> None:
        self.acting = ()
        with blamed(self._name, self._task.task_id):
            rewards = {name: self._match.rewards[name] for name in self.seats}
            rewards |= dict.fromkeys(illegal, self._game.forfeit)
            Evaluation(0.0, metrics=self._match.metrics()).checked()
            for name, seat in self.seats.items():
                seat.finish_reason = reason
                evaluation = Evaluation(rewards[name], metrics={ILLEGAL: float(name in illegal)})
                seat.evaluation = evaluation.checked()

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the match."""
        with blamed(self._name, self._task.task_id):
            return self._match.metrics()
