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


@dataclass(frozen=True)
class Turn:
    """What an environment answers to a reply.

    Attributes
    ----------
    messages
        What is said to the model next.
    done
        Whether the episode is over.
    history
        The whole conversation up to ``messages``, where the model is to read another than what was
        said; its tokens begin anew then. None: as it was.
    """

    messages: tuple[ChatMessage, ...] = ()
    done: bool = False
    history: tuple[ChatMessage, ...] | None = None


class Episode(ABC):
    """One attempt at one task, with what the environment remembers of it."""

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
        """Return what is worth knowing of the episode: finite numbers."""
        return {}


class LanguageEnvironment(ABC):
    """Makes episodes. Parameters are what the experiment gives beside the name."""

    max_turns: int | None = None
    """The most replies of an episode; None: as the experiment says."""
    scores_itself: ClassVar[bool] = False
    """Whether its episodes score themselves, where no evaluator is named."""

    @abstractmethod
    def begin(self, task: Task, seed: int) -> Episode:
        """Begin an attempt at a task; all that is random in it comes from the seed."""

    def characters(self) -> str:
        """Return what it may say is written with, beside what tasks are; for small tokenizers."""
        return ""


@dataclass
class PlainEpisode(Episode):
    """An episode that begins with the task's own messages and ends with the first reply."""

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


ENVIRONMENTS: Registry[LanguageEnvironment] = Registry(
    "language_environment",
    "ratchet.scenarios.language_task.environments.base:LanguageEnvironment",
    "ratchet.scenarios.language_task.environments",
    parameter="language_task.environment",
)


@ENVIRONMENTS.register("single_turn")
class SingleTurn(LanguageEnvironment):
    """The model replies once."""

    max_turns = 1

    def begin(self, task: Task, seed: int) -> Episode:
        """Begin with the task's messages."""
        return PlainEpisode(task)
