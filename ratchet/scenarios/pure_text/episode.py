"""One text episode as plain immutable values: its position and its steps.

The basis of rollouts and trees: a step returns a new episode, so that several can extend the same
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ratchet.language_models.types import ChatMessage
from ratchet.rollouts.tokens import ReplyTokens


class SentMessage(NamedTuple):
    """A text that an agent wrote in a channel."""

    round: int
    channel: str
    speaker: str
    text: str


class RawMessage(NamedTuple):
    """An agent's whole reply in a round."""

    round: int
    speaker: str
    text: str


class AgentAction(Protocol):
    """An agent's actions in its turn.

    ``messages`` by channel; ``decision`` 0, 1 or 2 (none), with its ``confidence``; ``valid``:
    whether the reply could be parsed, else ``invalid_reason`` is the reason; ``thinking``: the text
    before it, which no agent sees; ``tokens``: those of the reply, if requested.
    """

    @property
    def messages(self) -> Mapping[str, str]: ...  # noqa: D102 -- see the class
    @property
    def raw_message(self) -> str: ...  # noqa: D102
    @property
    def prompt(self) -> Sequence[ChatMessage]: ...  # noqa: D102
    @property
    def decision(self) -> int: ...  # noqa: D102
    @property
    def confidence(self) -> float: ...  # noqa: D102
    @property
    def retry_count(self) -> int: ...  # noqa: D102
    @property
    def token_limit(self) -> bool: ...  # noqa: D102
    @property
    def valid(self) -> bool: ...  # noqa: D102
    @property
    def prompt_tokens(self) -> int: ...  # noqa: D102
    @property
    def completion_tokens(self) -> int: ...  # noqa: D102
    @property
    def thinking(self) -> str: ...  # noqa: D102
    @property
    def invalid_reason(self) -> str: ...  # noqa: D102
    @property
    def tokens(self) -> ReplyTokens | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Position:
    """All of an episode that decides what its agents see; the label is not in it.

    ``messages`` and ``raw_messages`` are in the order of rounds, and in a round of channels and
    agents. ``datapoint_id`` is for error messages only.
    """

    datapoint_id: int
    seed: int
    prover_stance: int
    question: str
    solution: str
    round: int = 0
    messages: tuple[SentMessage, ...] = ()
    raw_messages: tuple[RawMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """One round of an episode.

    ``channels``: those in which each agent could write; ``actions`` by the names of active agents;
    ``rewards`` by agent index; ``done``, ``terminated``: the episode after the step; ``node_id``:
    the node of a tree that the step led to, or the agent whose turn was redrawn, else -1.
    """

    round: int
    channels: tuple[tuple[int, ...], ...]
    actions: Mapping[str, AgentAction]
    decisions: tuple[int, ...]
    rewards: tuple[float, ...]
    done: bool
    terminated: bool
    node_id: int = -1


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode so far, from ``begin_episode`` and ``advance_episode``.

    ``y``: the label, final once the episode is done; ``done``: it is decided or truncated;
    ``terminated``: it was truncated.
    """

    rollout_id: int
    y: int
    position: Position
    agents_done: tuple[bool, ...]
    steps: tuple[PlayedStep, ...] = ()
    done: bool = False
    terminated: bool = False
