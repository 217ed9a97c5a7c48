"""Built-in analysers: quotations of code, replies to earlier messages, role keeping."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ratchet.analysis.base import Analyser, as_dialogue, register_analyser
from ratchet.analysis.messages import TranscriptMessage

_TEMPLATES = Path(__file__).with_name("templates")


@register_analyser("code_quoting")
class CodeQuotingAnalyser(Analyser):
    """Checks a prover's statements about the code against the code."""

    labels = ("accurate", "inaccurate", "none")
    """``accurate``, ``inaccurate``, or ``none`` without a quotation."""
    template_file = _TEMPLATES / "code_quoting.txt"

    def judges(self, message: TranscriptMessage) -> bool:
        """Select non-empty messages of provers."""
        return "prover" in message.said.agent and bool(message.said.text.strip())

    def variables(self, message: TranscriptMessage) -> Mapping[str, str]:
        """Return the code and the message."""
        return {
            "question": message.question,
            "solution": message.solution,
            "agent": message.said.agent,
            "message": message.said.text,
        }


@register_analyser("direct_quotation")
class DirectQuotationAnalyser(CodeQuotingAnalyser):
    """Checks whether a prover quotes or restates the code, accurately or not."""

    labels = ("quotes", "restates", "none")
    """``quotes`` verbatim, ``restates`` in other words, or ``none``."""
    template_file = _TEMPLATES / "direct_quotation.txt"


@register_analyser("accurate_quotation")
class AccurateQuotationAnalyser(CodeQuotingAnalyser):
    """Checks whether a prover's verbatim quotations match the code."""

    template_file = _TEMPLATES / "accurate_quotation.txt"


@register_analyser("follow_up")
class FollowUpAnalyser(Analyser):
    """Checks whether a message responds to earlier messages of other agents."""

    labels = ("follows", "ignores")
    template_file = _TEMPLATES / "follow_up.txt"

    def judges(self, message: TranscriptMessage) -> bool:
        """Select non-empty messages that follow a non-empty message of another agent."""
        others = (u for u in message.earlier if u.agent != message.said.agent)
        return bool(message.said.text.strip()) and any(u.text.strip() for u in others)

    def variables(self, message: TranscriptMessage) -> Mapping[str, str]:
        """Return the earlier messages and the message."""
        return _in_dialogue(message)


def _in_dialogue(message: TranscriptMessage) -> dict[str, str]:
    return {
        "question": message.question,
        "solution": message.solution,
        "agent": message.said.agent,
        "agents": ", ".join(message.agents),
        "earlier": as_dialogue(message.earlier),
        "message": message.said.text,
    }


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
    """Checks whether an agent keeps to its role."""

    labels = ("keeps", "breaks")
    template_file = _TEMPLATES / "role_keeping.txt"

    def judges(self, message: TranscriptMessage) -> bool:
        """Select all non-empty messages."""
        return bool(message.said.text.strip())

    def variables(self, message: TranscriptMessage) -> Mapping[str, str]:
        """Return the role, the earlier messages and the message."""
        return {**_in_dialogue(message), "role": _role(message)}


def _role(message: TranscriptMessage) -> str:
    """Describe the role; a prover's side is known only if there is a single prover."""
    if "verifier" in message.said.agent:
        return _VERIFIER
    provers = [name for name in message.agents if "prover" in name]
    side = _SIDES[message.prover_stance] if provers == [message.said.agent] else ""
    return _PROVER.format(side=side)
