"""``Game``, ``Match`` and ``View``: the interface between games and players."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from ratchet.language_models.types import ChatMessage

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class View:
    """Information of a seat when it acts.

    Attributes
    ----------
    messages
        What is new for the seat since its last turn.
    legal
        The number of each legal action → its text.
    """

    messages: tuple[ChatMessage, ...]
    legal: Mapping[int, str]


Chooser: TypeAlias = Callable[[View], int]
"""Chooses a legal action from what a seat sees."""


class Match(ABC):
    """One match of a game: a function of its seed and of the actions so far."""

    @property
    @abstractmethod
    def acting(self) -> Sequence[str]:
        """The seats whose turn it is: several act at the same time; none: the match is over."""

    @abstractmethod
    def view(self, seat: str) -> View:
        """Return the view of an acting seat."""

    def legal(self, seat: str) -> Collection[int]:
        """Return the numbers of an acting seat's legal actions."""
        return self.view(seat).legal

    def observe(self, seat: str) -> Floats:
        """Return the knowledge of a seat, acting or not, as numbers for networks, f32 [D]."""
        raise NotImplementedError(f"{type(self).__name__}.observe")

    @abstractmethod
    def play(self, actions: Mapping[str, int]) -> None:
        """Apply the legal actions of all acting seats."""

    @property
    @abstractmethod
    def rewards(self) -> Mapping[str, float]:
        """Each seat's sum of rewards so far."""

    def role(self, seat: str) -> str:
        """Return the role that the match drew for a seat; empty if roles are not drawn.

        A baseline over iterations (``grpo.baseline: agent_average``) is one of the role then.
        """
        return ""

    def metrics(self) -> Mapping[str, float]:
        """Return further finite numbers about the match."""
        return {}


class Game(ABC):
    """A game of several seats. Its parameters are keyword arguments of the class."""

    seats: tuple[str, ...]
    """The names of the seats, in an order that does not change."""
    forfeit: float = -1.0
    """The reward of a seat whose reply names no legal action, which ends the match."""
    observation_size: int = 0
    """D of :meth:`Match.observe`; 0: networks cannot play."""
    num_actions: int = 0
    """The actions are 0 to this − 1; for networks."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages whose versions decide what is played."""

    @abstractmethod
    def begin(self, seed: int) -> Match:
        """Start a match; all its randomness comes from the seed."""

    def characters(self) -> str:
        """Return the characters of all messages and actions, for small tokenizers."""
        return ""


def read_action(legal: Mapping[int, str], reply: str) -> int | None:
    """Return the legal action that a reply names, or None.

    A reply names an action by its text or by the start of it, if no other legal action is named
    as well. Outer white space doesn't matter, and case only where names differ by it.
    """
    text = reply.strip()
    for is_named in (str.__eq__, _starts_with):
        for fold in (str, str.casefold):
            actions = [action for action, name in legal.items() if is_named(fold(name), fold(text))]
            if len(actions) == 1:
                return actions[0]
    return None


def _starts_with(name: str, text: str) -> bool:
    return bool(text) and name.startswith(text)
