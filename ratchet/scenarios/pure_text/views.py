"""What one agent may see at one step: nothing of the label, and no channel that is hidden from it.

Prompts are built from an ``AgentView`` alone, so what isn't in it can't be in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.protocols.handler import ProtocolHandler
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.episode import Position, RawMessage, SentMessage
from ratchet.scenarios.pure_text.rules import RoundRules, rules_of


@dataclass(frozen=True, slots=True)
class AgentView:
    """All that an agent may see at a step, and what it may answer.

    Attributes
    ----------
    stance
        What a prover argues for: 0 reject, 1 accept; None for a verifier.
    own_raw_messages, messages
        Its own replies, and what was written in the channels it sees, itself included; by round.
    is_last_round
        Whether it never acts again after this round.
    headers
        The channels it must write in now, with the header of each; none if it only decides.
    may_decide
        Whether a decision would count now.
    channels
        The channels it sees, in the protocol's order.
    names
        What it knows each agent by; None for who is anonymous.
    shuffles_channels
        Whether its prompt shows the channels of a round in an order drawn by the seed.
    datapoint_id
        For error messages; no prompt has it.
    """

    agent_name: str
    round: int
    question: str
    solution: str
    stance: int | None
    seed: int
    own_raw_messages: tuple[RawMessage, ...]
    messages: tuple[SentMessage, ...]
    is_last_round: bool
    headers: Mapping[str, str]
    may_decide: bool
    channels: tuple[str, ...]
    names: Mapping[str, str | None]
    shuffles_channels: bool = False
    datapoint_id: int = -1


def agent_view(
    state: NestedArrayDict, index: int, agent: str, handler: ProtocolHandler
) -> AgentView:
    """Return what an agent sees in one of the states [B] of a ``PureTextEnvironment``."""
    rules = rules_of(handler)
    return view_of(rules, position_of(rules, state, index), agent)


def view_of(rules: RoundRules, position: Position, agent: str) -> AgentView:
    """Return what an agent sees in a position."""
    channels = rules.visible_channels[agent]
    turn = rules.turn(position.round, position.seed, agent)
    return AgentView(
        agent_name=agent,
        round=position.round,
        question=position.question,
        solution=position.solution,
        stance=rules.stance_of(agent, position.prover_stance),
        seed=position.seed,
        own_raw_messages=tuple([m for m in position.raw_messages if m.speaker == agent]),
        messages=tuple([m for m in position.messages if m.channel in channels]),
        is_last_round=turn.is_last,
        headers=turn.headers,
        may_decide=turn.may_decide,
        channels=channels,
        names=rules.shown_names,
        shuffles_channels=agent in rules.shuffled_agents,
        datapoint_id=position.datapoint_id,
    )


def position_of(rules: RoundRules, state: NestedArrayDict, index: int) -> Position:
    """Read one position from a batch of states."""
    texts = state["message_history"][index].tolist()
    speakers = state["message_agent_id"][index].tolist()
    raw = state["raw_message_history"][index].tolist()
    return Position(
        datapoint_id=int(state["datapoint_id"][index]),
        seed=int(state["seed"][index]),
        prover_stance=int(state["prover_stance"][index]),
        question=state["question"][index],
        solution=state["solution"][index],
        round=int(state["round"][index]),
        messages=tuple(
            SentMessage(r, rules.channel_names[c], rules.agent_names[speakers[r][c]], text)
            for r, row in enumerate(texts)
            for c, text in enumerate(row)
            if text is not None
        ),
        raw_messages=tuple(
            RawMessage(r, rules.agent_names[a], text)
            for r, row in enumerate(raw)
            for a, text in enumerate(row)
            if text is not None
        ),
    )
