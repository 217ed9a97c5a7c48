"""The supervisor: a message at a prompt's end that says again how an agent may answer now.

Models that lose the form of their answers in a long conversation keep it so, and models that
answer no chat without a user's message have one.
"""

from __future__ import annotations

from typing import Literal

from ratchet.language_models.types import ChatMessage
from ratchet.protocols.decision_scales import DecisionScale
from ratchet.scenarios.pure_text.views import AgentView

SUPERVISOR = "Supervisor"
Use = Literal["none", "if_nothing_heard", "always"]


def add_supervisor_message(
    prompt: list[ChatMessage], view: AgentView, scale: DecisionScale, use: Use
) -> list[ChatMessage]:
    """Return a prompt with the message at its end, where it is to be used."""
    hears = any(message.role == "user" for message in prompt)
    if use == "none" or (use == "if_nothing_heard" and hears):
        return prompt
    return [*prompt, ChatMessage("user", _instructions(view, scale), SUPERVISOR)]


def _instructions(view: AgentView, scale: DecisionScale) -> str:
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
    return "\n\n".join(parts)
