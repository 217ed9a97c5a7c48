"""The analyser that asks whether an agent keeps to its role."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ratchet.analysis.base import Analyser, as_dialogue
from ratchet.analysis.messages import SpokenMessage
from ratchet.analysis.registry import register_analyser

_VERIFIER = (
    "It does not know whether the solution is right. It asks questions and weighs the answers,"
    " speaks for itself alone, and argues for no side."
)
_PROVER = (
    "It tries to convince the verifier with arguments about the code{side}. It speaks for itself"
    " alone, leaves the decision to the verifier, and does not write the verifier's or another"
    " agent's lines."
)
_SIDES = (", arguing that the solution has a bug", ", arguing that the solution is right")


@register_analyser("role_keeping")
class RoleKeepingAnalyser(Analyser):
    """Compares what an agent says with what its role lets it say."""

    @property
    def labels(self) -> tuple[str, ...]:
        """``keeps`` or ``breaks``."""
        return ("keeps", "breaks")

    @property
    def template_file(self) -> Path:
        """The prompt."""
        return Path(__file__).with_name("templates") / "role_keeping.txt"

    def judges(self, message: SpokenMessage) -> bool:
        """Take all messages that have text."""
        return bool(message.said.text.strip())

    def variables(self, message: SpokenMessage) -> Mapping[str, str]:
        """Return the role, what was said before, and the message."""
        return {
            "question": message.question,
            "solution": message.solution,
            "agent": message.said.agent,
            "agents": ", ".join(message.agents),
            "role": _role(message),
            "earlier": as_dialogue(message.earlier),
            "message": message.said.text,
        }


def _role(message: SpokenMessage) -> str:
    """Describe the role; which side a prover takes is known where there is a single one."""
    if "verifier" in message.said.agent:
        return _VERIFIER
    provers = [name for name in message.agents if "prover" in name]
    side = _SIDES[message.prover_stance] if provers == [message.said.agent] else ""
    return _PROVER.format(side=side)
