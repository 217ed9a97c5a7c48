"""From what an agent sees to the chat that is sent to its model.

System prompt; round by round the agent's own reply and what others wrote; in its last round the
message that says so. A pure function of view, spec and system prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ratchet.language_models.types import ChatMessage
from ratchet.protocols.text_specs import TextAgentSpec
from ratchet.scenarios.pure_text.episode import SentMessage
from ratchet.scenarios.pure_text.views import AgentView
from ratchet.seeding import derive_seed


def build_prompt(view: AgentView, spec: TextAgentSpec, system_prompt: str) -> list[ChatMessage]:
    """Write an agent's prompt.

    Parameters
    ----------
    system_prompt
        What it is told first, see ``SystemPrompts.render`` of the scenario.

    Returns
    -------
    list of ChatMessage
        The system prompt; for each round the agent's own reply (role assistant), then what others
        wrote in the channels it sees (role user, with their names unless anonymous); the spec's
        system message of the last round, if it is that. Empty messages are left out.
    """
    own: dict[int, str] = {}
    if spec.shows_own_raw_messages:
        own = {m.round: m.text for m in view.own_raw_messages}
    heard: dict[int, list[SentMessage]] = {}
    for message in view.messages:
        if message.speaker != view.agent_name:
            heard.setdefault(message.round, []).append(message)
        elif not spec.shows_own_raw_messages:
            before = own.get(message.round)
            own[message.round] = f"{before}\n\n{message.text}" if before else message.text
    prompt = [ChatMessage("system", system_prompt)]
    for round in range(view.round):
        if own.get(round):
            prompt.append(ChatMessage("assistant", own[round]))
        if round in heard:
            prompt += _heard(view, round, heard[round])
    if view.is_last_round and spec.last_round_system_message:
        prompt.append(ChatMessage("system", spec.last_round_system_message))
    return prompt


def channel_order(seed: int, round: int, channels: tuple[str, ...]) -> tuple[str, ...]:
    """Put channels in an order drawn by ``seed + round``.

    Of any two channels the order is the same whichever others there are.
    """
    return _order(seed + round, channels)


@lru_cache(maxsize=4096)
def _order(seed: int, channels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(channels, key=lambda name: derive_seed(seed, "channel_order", agent=name)))


def _heard(view: AgentView, round: int, messages: Sequence[SentMessage]) -> list[ChatMessage]:
    """Return what others wrote in a round, channel by channel."""
    if view.shuffles_channels and len(messages) > 1:
        order = channel_order(view.seed, round, view.channels)
        messages = sorted(messages, key=lambda message: order.index(message.channel))
    return [ChatMessage("user", m.text, view.names[m.speaker]) for m in messages if m.text]
