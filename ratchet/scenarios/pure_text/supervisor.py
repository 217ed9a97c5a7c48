"""The supervisor: a message at a prompt's end that says again how an agent may answer now.

Models that lose the form of their answers in a long conversation keep it so, and models that
answer no chat without a user's message have one.
"""

from __future__ import annotations

from ratchet.language_models.types import ChatMessage
from ratchet.protocols.decision_scales import DecisionScale
from ratchet.scenarios.pure_text.views import AgentView

SUPERVISOR = "Supervisor"


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
