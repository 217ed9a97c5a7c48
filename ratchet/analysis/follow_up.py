"""The analyser that asks whether a message takes up what was said before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ratchet.analysis.base import Analyser, as_dialogue
from ratchet.analysis.messages import SpokenMessage
from ratchet.analysis.registry import register_analyser


@register_analyser("follow_up")
class FollowUpAnalyser(Analyser):
    """Compares a message, of a prover or a verifier, with what others said before it."""

    @property
    def labels(self) -> tuple[str, ...]:
        """``follows`` or ``ignores``."""
        return ("follows", "ignores")

    @property
    def template_file(self) -> Path:
        """The prompt."""
        return Path(__file__).with_name("templates") / "follow_up.txt"

    def judges(self, message: SpokenMessage) -> bool:
        """Take messages that have text, after another agent has said something."""
        heard = (u for u in message.earlier if u.agent != message.said.agent)
        return bool(message.said.text.strip()) and any(u.text.strip() for u in heard)

    def variables(self, message: SpokenMessage) -> Mapping[str, str]:
        """Return what was said before, and the message."""
        return {
            "question": message.question,
            "solution": message.solution,
            "agent": message.said.agent,
            "agents": ", ".join(message.agents),
            "earlier": as_dialogue(message.earlier),
            "message": message.said.text,
        }
