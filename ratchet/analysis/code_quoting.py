"""The analyser that asks whether a prover quotes the code accurately."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ratchet.analysis.base import Analyser
from ratchet.analysis.messages import SpokenMessage
from ratchet.analysis.registry import register_analyser


@register_analyser("code_quoting")
class CodeQuotingAnalyser(Analyser):
    """Compares what a prover says about the code with the code."""

    @property
    def labels(self) -> tuple[str, ...]:
        """``accurate``, ``inaccurate``, or ``none`` where nothing is quoted."""
        return ("accurate", "inaccurate", "none")

    @property
    def template_file(self) -> Path:
        """The prompt."""
        return Path(__file__).with_name("templates") / "code_quoting.txt"

    def judges(self, message: SpokenMessage) -> bool:
        """Take provers' messages that have text."""
        return "prover" in message.said.agent and bool(message.said.text.strip())

    def variables(self, message: SpokenMessage) -> Mapping[str, str]:
        """Return the code and the message."""
        return {
            "question": message.question,
            "solution": message.solution,
            "agent": message.said.agent,
            "message": message.said.text,
        }
