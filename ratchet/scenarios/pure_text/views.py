"""Views of agents on a game, the prompts built from them, and supervisor messages.

A view excludes the label and all channels that are hidden from its agent. Prompts are a pure
function of a view, the agent's spec and its system prompt: system prompt, each round's own reply
and messages of others, and in the last round a message about it. The supervisor message at the end
restates how the agent may answer: models that lose the format of replies in a long conversation
keep it, and models that require a user's message get one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ratchet.language_models.types import ChatMessage
from ratchet.protocols.decision_scales import DecisionScale
from ratchet.protocols.handler import ProtocolHandler
from ratchet.protocols.text_specs import TextAgentSpec
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.episode import Position, RawMessage, SentMessage
from ratchet.scenarios.pure_text.rules import RoundRules, rules_of
from ratchet.seeding import derive_seed

SUPERVISOR = "Supervisor"


@dataclass(frozen=True, slots=True)
class AgentView:
    """Everything an agent may see at a step, and its allowed answers.

    Attributes
    ----------
    stance
        A prover's stance: 0 reject, 1 accept; None for a verifier.
    own_raw_messages, messages
        Its own replies, and all messages in the channels it sees, including its own; by round.
    is_last_round
        Whether it never acts again after this round.
    headers
        The channels it must write in now, with the header of each; none if it only decides.
    may_decide
        Whether a decision would count now.
    channels
        The channels it sees, in the protocol's order.
    names
        The names of agents; None for anonymous ones.
    shuffles_channels
        Whether its prompt shows the channels of a round in an order sampled by the seed.
    datapoint_id
        For error messages; not part of prompts.
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
    """Return an agent's view in one of the states [B] of a ``PureTextEnvironment``."""
    rules = rules_of(handler)
    return view_of(rules, position_of(rules, state, index), agent)


def view_of(rules: RoundRules, position: Position, agent: str) -> AgentView:
    """Return an agent's view of a position."""
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


def position_of(
    rules: RoundRules, state: NestedArrayDict, index: int, round: int | None = None
) -> Position:
    """Read a position from a batch of states; from rollouts, the one at the start of ``round``."""
    texts = state["message_history"][index].tolist()
    end = len(texts) if round is None else round
    speakers = state["message_agent_id"][index].tolist()
    raw = state["raw_message_history"][index].tolist()
    return Position(
        datapoint_id=int(state["datapoint_id"][index]),
        seed=int(state["seed"][index]),
        prover_stance=int(state["prover_stance"][index]),
        question=state["question"][index],
        solution=state["solution"][index],
        round=int(state["round"][index]) if round is None else round,
        messages=tuple(
            SentMessage(r, rules.channel_names[c], rules.agent_names[speakers[r][c]], text)
            for r, row in enumerate(texts)
            for c, text in enumerate(row)
            if text is not None and r < end
        ),
        raw_messages=tuple(
            RawMessage(r, rules.agent_names[a], text)
            for r, row in enumerate(raw)
            for a, text in enumerate(row)
            if text is not None and r < end
        ),
    )


def write_position(
    rules: RoundRules, position: Position, arrays: NestedArrayDict, index: int
) -> None:
    """Write a position, except its round, to an index of states or rollouts.

    The inverse of :func:`position_of`; earlier messages remain.
    """
    for key, value in (
        ("datapoint_id", position.datapoint_id),
        ("seed", position.seed),
        ("prover_stance", position.prover_stance),
        ("question", position.question),
        ("solution", position.solution),
    ):
        arrays[key][index] = value
    for message in position.messages:
        slot = (index, message.round, rules.channel_names.index(message.channel))
        arrays["message_history"][slot] = message.text
        arrays["message_agent_id"][slot] = rules.places[message.speaker]
    for raw in position.raw_messages:
        arrays["raw_message_history"][index, raw.round, rules.places[raw.speaker]] = raw.text


def build_prompt(view: AgentView, spec: TextAgentSpec, system_prompt: str) -> list[ChatMessage]:
    """Build an agent's prompt.

    Parameters
    ----------
    system_prompt
        The system prompt, see ``SystemPrompts.render`` of the scenario.

    Returns
    -------
    list of ChatMessage
        The system prompt; for each round the agent's own reply (role assistant), then others'
        messages in the channels it sees (role user, with their names unless anonymous); the spec's
        system message in the last round. Empty messages are omitted.
    """
    own_texts: dict[int, str] = {}
    if spec.shows_own_raw_messages:
        own_texts = {m.round: m.text for m in view.own_raw_messages}
    heard: dict[int, list[SentMessage]] = {}
    for message in view.messages:
        if message.speaker != view.agent_name:
            heard.setdefault(message.round, []).append(message)
        elif not spec.shows_own_raw_messages:
            before = own_texts.get(message.round)
            own_texts[message.round] = f"{before}\n\n{message.text}" if before else message.text
    prompt = [ChatMessage("system", system_prompt)]
    for round in range(view.round):
        if own_texts.get(round):
            prompt.append(ChatMessage("assistant", own_texts[round]))
        if round in heard:
            prompt += _heard(view, round, heard[round])
    if view.is_last_round and spec.last_round_system_message:
        prompt.append(ChatMessage("system", spec.last_round_system_message))
    return prompt


def channel_order(seed: int, round: int, channels: tuple[str, ...]) -> tuple[str, ...]:
    """Return channels in an order sampled by ``seed + round``.

    Of any two channels the order is the same whichever others there are.
    """
    return _order(seed + round, channels)


@lru_cache(maxsize=4096)
def _order(seed: int, channels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(channels, key=lambda name: derive_seed(seed, "channel_order", agent=name)))


def _heard(view: AgentView, round: int, messages: Sequence[SentMessage]) -> list[ChatMessage]:
    """Return others' messages of a round, by channel."""
    if view.shuffles_channels and len(messages) > 1:
        order = channel_order(view.seed, round, view.channels)
        messages = sorted(messages, key=lambda message: order.index(message.channel))
    return [ChatMessage("user", m.text, view.names[m.speaker]) for m in messages if m.text]


def supervisor_message(view: AgentView, scale: DecisionScale) -> ChatMessage:
    """Return the message for an agent that sees ``view``."""
    parts = ["It is your turn."]
    writes = view.headers and not (view.may_decide and view.is_last_round)
    if writes:
        headers = "\n".join(f"{header} <your text>" for header in view.headers.values())
        parts.append(f"Write a text after this header, at the beginning of a line:\n{headers}")
        if len(view.headers) > 1:
            parts[-1] = parts[-1].replace("this header", "each of these headers")
    if view.may_decide:
        parts.append(f"To decide{', instead' if writes else ''}, reply with {scale.instructions}")
    if view.is_last_round and view.may_decide:
        parts.append("This is your last turn: decide now.")
    return ChatMessage("user", "\n\n".join(parts), SUPERVISOR)
