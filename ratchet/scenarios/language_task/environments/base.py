"""Environments of tasks: base class, and the one of a single reply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ratchet.registry import Registry

if TYPE_CHECKING:
    from ratchet.language_models.types import ChatMessage
    from ratchet.scenarios.language_task.task import Evaluation, Task

ENVIRONMENTS: Registry[LanguageEnvironment] = Registry(
    "language_environment",
    "ratchet.scenarios.language_task.environments.base:LanguageEnvironment",
    "ratchet.scenarios.language_task.environments",
    parameter="language_task.environment",
)


@dataclass(frozen=True)
class Turn:
    """Response of an environment to a reply.

    Attributes
    ----------
    messages
        The next messages to the model.
    done
        Whether the episode is over.
    history
        The full conversation up to ``messages``, if it is rewritten for the model; its tokens are
        then rebuilt. None: unchanged.
    """

    messages: tuple[ChatMessage, ...] = ()
    done: bool = False
    history: tuple[ChatMessage, ...] | None = None


class Episode(ABC):
    """One attempt at one task, with the environment's state."""

    @property
    @abstractmethod
    def opening(self) -> Sequence[ChatMessage]:
        """The messages that the model reads first."""

    @abstractmethod
    def answer(self, reply: str) -> Turn:
        """Answer the model's reply, one that was neither cut off nor the last one allowed."""

    def evaluate(self, completion: str, messages: Sequence[ChatMessage]) -> Evaluation | None:
        """Score the episode, of an environment that scores itself."""
        return None

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the episode: finite numbers."""
        return {}


class LanguageEnvironment(ABC):
    """Factory of episodes. Parameters are those next to the name in the experiment."""

    max_turns: int | None = None
    """The most replies of an episode; None: set by the experiment."""
    scores_itself: ClassVar[bool] = False
    """Whether its episodes score themselves, where no evaluator is named."""

    @abstractmethod
    def begin(self, task: Task, seed: int) -> Episode:
        """Start an attempt at a task; all its randomness comes from the seed."""

    def characters(self) -> str:
        """Return further characters of its messages, for small tokenizers."""
        return ""


@dataclass
class PlainEpisode(Episode):
    """An episode that starts with the task's messages and ends with the first reply."""

    task: Task
    said: list[str] = field(default_factory=list)
    """The replies that were answered so far."""

    @property
    def opening(self) -> Sequence[ChatMessage]:
        """The task's messages."""
        return self.task.messages

    def answer(self, reply: str) -> Turn:
        """End the episode."""
        self.said.append(reply)
        return Turn(done=True)


@ENVIRONMENTS.register("single_turn")
class SingleTurn(LanguageEnvironment):
    """The model replies once."""

    max_turns = 1

    def begin(self, task: Task, seed: int) -> Episode:
        """Start with the task's messages."""
        return PlainEpisode(task)
