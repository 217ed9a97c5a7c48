"""Readable rollouts: messages, raw and processed replies, and prompts.

Three kinds of lists of plain dictionaries, one per rollout, and the lines of ``transcripts.jsonl``,
which the report and analysers read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from ratchet.errors import ArrayShapeError
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.outcomes import (
    Bools,
    Floats,
    Ints,
    always_failed,
    check_agents,
    episode_rewards,
    final_decisions,
    verifier_index,
)

Transcript: TypeAlias = dict[str, Any]
"""Plain values, as supported by JSON and YAML."""

_NOTES = {"thinking": "thinking", "invalid": "invalid_reason"}
"""Note of a reply → its array, which rollouts of earlier versions lack."""


def raw_transcripts(
    rollouts: NestedArrayDict,
    agent_names: Sequence[str],
    channel_names: Sequence[str],
    *,
    verifier_name: str | None = None,
) -> list[Transcript]:
    """Return the models' replies verbatim.

    Parameters
    ----------
    rollouts
        Batch [N], laid out as :func:`~ratchet.rollouts.specs.rollout_spec` says.
    agent_names, channel_names
        In the order of their dimensions.
    verifier_name
        The agent whose decisions count; the one with "verifier" in its name if not given.

    Returns
    -------
    list of dict
        For each rollout its facts and ``messages``: ``round``, ``agent``, ``text``; also
        ``thinking`` where the model thought, and ``invalid``, why a reply couldn't be read.
    """
    reader = _Reader(rollouts, agent_names, channel_names, verifier_name)
    return reader.read_all(
        lambda row: {
            "messages": [
                {"round": turn.round, "agent": turn.agent, "text": turn.raw} | turn.notes
                for turn in reader.turns(row)
                if turn.raw is not None
            ]
        }
    )


def processed_transcripts(
    rollouts: NestedArrayDict,
    agent_names: Sequence[str],
    channel_names: Sequence[str],
    *,
    verifier_name: str | None = None,
) -> list[Transcript]:
    """Return the messages of each channel, and the decisions; see :func:`raw_transcripts`.

    Each rollout's facts, ``messages`` (``round``, ``agent``, ``channel``, ``text``) and
    ``decisions`` (``round``, ``agent``, ``decision``).
    """
    reader = _Reader(rollouts, agent_names, channel_names, verifier_name)
    return reader.read_all(
        lambda row: {
            "messages": [
                {"round": turn.round, "agent": turn.agent, "channel": channel, "text": text}
                for turn in reader.turns(row)
                for channel, text in turn.said
            ],
            "decisions": [
                {"round": turn.round, "agent": turn.agent, "decision": turn.decision}
                for turn in reader.turns(row)
                if turn.decision is not None
            ],
        }
    )


def prompt_transcripts(
    rollouts: NestedArrayDict,
    agent_names: Sequence[str],
    channel_names: Sequence[str],
    *,
    verifier_name: str | None = None,
) -> list[Transcript]:
    """Return the prompts of each model; see :func:`raw_transcripts`.

    Each rollout's facts and ``prompts``: ``round``, ``agent``, ``messages``.
    """
    reader = _Reader(rollouts, agent_names, channel_names, verifier_name)
    return reader.read_all(
        lambda row: {
            "prompts": [
                {"round": turn.round, "agent": turn.agent, "messages": json.loads(turn.prompt)}
                for turn in reader.turns(row)
                if turn.prompt is not None
            ]
        }
    )


def report_transcripts(
    rollouts: NestedArrayDict,
    agent_names: Sequence[str],
    channel_names: Sequence[str],
    *,
    verifier_name: str | None = None,
    label_texts: Sequence[str] = (),
) -> list[Transcript]:
    """Return the lines of ``transcripts.jsonl``; see :func:`raw_transcripts`.

    Parameters
    ----------
    rollouts, agent_names, channel_names, verifier_name
        As for :func:`raw_transcripts`.
    label_texts
        Text for each label ``y``: ``truth`` of each rollout. Left out if empty.

    Returns
    -------
    list of dict
        For each rollout its facts, ``always_failed`` (whether no rollout of its datapoint was
        correct) and ``rounds``: ``round``, ``messages`` (``agent``, ``channel``, ``text``), ``raw``
        (agent → text) and ``decision`` (agent → 0, 1 or 2 of agents that may decide); if any,
        ``thinking`` and ``invalid`` (agent → text).
    """
    reader = _Reader(rollouts, agent_names, channel_names, verifier_name)
    return reader.read_all(
        lambda row: {
            **({"truth": label_texts[int(rollouts["y"][row])]} if label_texts else {}),
            "always_failed": bool(reader.always_failed[row]),
            "rounds": _rounds(list(reader.turns(row))),
        }
    )


def _rounds(turns: Sequence[_Turn]) -> list[Transcript]:
    rounds: dict[int, Transcript] = {}
    for turn in turns:
        blank = {"round": turn.round, "messages": [], "raw": {}, "decision": {}}
        entry = rounds.setdefault(turn.round, blank)
        entry["messages"] += [
            {"agent": turn.agent, "channel": channel, "text": text} for channel, text in turn.said
        ]
        if turn.raw is not None:
            entry["raw"][turn.agent] = turn.raw
        if turn.decision is not None:
            entry["decision"][turn.agent] = turn.decision
        for kind, text in turn.notes.items():
            entry.setdefault(kind, {})[turn.agent] = text
    return list(rounds.values())


@dataclass(frozen=True)
class _Turn:
    """One agent's actions in one step; ``said`` contains (channel, text), ``decision`` 0, 1, 2.

    ``notes`` contains, if any, the ``thinking`` and the reason why a reply is ``invalid``.
    """

    round: int
    agent: str
    raw: str | None
    prompt: str | None
    said: tuple[tuple[str, str], ...]
    decision: int | None
    notes: dict[str, str]


class _Reader:
    """Reads rollouts one by one."""

    def __init__(
        self,
        rollouts: NestedArrayDict,
        agent_names: Sequence[str],
        channel_names: Sequence[str],
        verifier_name: str | None,
    ) -> None:
        check_agents(rollouts, agent_names)
        shape = rollouts.array(("agents", "message")).shape
        if shape[-1] != len(channel_names):
            raise ArrayShapeError(
                f"agents.message: got shape {shape}, expected (N, T, {len(agent_names)},"
                f" {len(channel_names)}) for the channels {list(channel_names)}."
            )
        self.rollouts = rollouts
        self.agent_names = tuple(agent_names)
        self.channel_names = tuple(channel_names)
        self.verifier = verifier_index(agent_names, verifier_name)

    @cached_property
    def always_failed(self) -> Bools:
        return always_failed(self.rollouts, self.verifier)

    @cached_property
    def _decisions(self) -> Ints:
        return final_decisions(self.rollouts, self.verifier)

    @cached_property
    def _rewards(self) -> Floats:
        return episode_rewards(self.rollouts)

    def read_all(self, read: Callable[[int], Transcript]) -> list[Transcript]:
        """Add each rollout's facts to its entries."""
        return [self._facts(row) | read(row) for row in range(len(self.rollouts))]

    def turns(self, row: int) -> Iterator[_Turn]:
        """Yield the agents' actions by step and agent, except steps that were not played."""
        one = self.rollouts[row]
        agents = one.nested("agents")
        active, padding = agents.array("active"), one.array("padding")
        notes = {kind: agents.array(name) for kind, name in _NOTES.items() if name in agents}
        for step in (~padding).nonzero()[0]:
            for index in active[step].nonzero()[0]:
                decision = int(agents["decision"][step, index])
                texts = zip(self.channel_names, agents["message"][step, index], strict=True)
                yield _Turn(
                    round=int(one["round"][step]),
                    agent=self.agent_names[index],
                    raw=agents["raw_message"][step, index],
                    prompt=agents["prompt"][step, index],
                    said=tuple((channel, text) for channel, text in texts if text is not None),
                    decision=decision if decision != 2 or index == self.verifier else None,
                    notes={
                        kind: texts[step, index]
                        for kind, texts in notes.items()
                        if texts[step, index] is not None
                    },
                )

    def _facts(self, row: int) -> Transcript:
        names = ("datapoint_id", "seed", "y", "prover_stance")
        facts: Transcript = {"rollout": int(self.rollouts["rollout_id"][row])}
        facts |= {name: int(self.rollouts[name][row]) for name in names}
        if "level" in self.rollouts:
            facts["level"] = int(self.rollouts["level"][row])
        decision = int(self._decisions[row])
        rewards = zip(self.agent_names, self._rewards[row].tolist(), strict=True)
        return facts | {
            "question": self.rollouts["question"][row],
            "solution": self.rollouts["solution"][row],
            "decision": decision,
            "correct": decision == facts["y"],
            "rewards": {name: r if math.isfinite(r) else None for name, r in rewards},
        }
