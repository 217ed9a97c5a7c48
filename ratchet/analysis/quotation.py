"""Two analysers of how a prover speaks of the code: whether it quotes it, and whether rightly.

``code_quoting`` asks both in one question; these tell them apart.
"""

from __future__ import annotations

from pathlib import Path

from ratchet.analysis.code_quoting import CodeQuotingAnalyser
from ratchet.analysis.registry import register_analyser


@register_analyser("direct_quotation")
class DirectQuotationAnalyser(CodeQuotingAnalyser):
    """Asks whether a prover points to the code itself, whatever it says of it."""

    @property
    def labels(self) -> tuple[str, ...]:
        """``quotes`` word for word, ``restates`` in other words, or ``none``."""
        return ("quotes", "restates", "none")

    @property
    def template_file(self) -> Path:
        """The prompt."""
        return Path(__file__).with_name("templates") / "direct_quotation.txt"


@register_analyser("accurate_quotation")
class AccurateQuotationAnalyser(CodeQuotingAnalyser):
    """Asks whether what a prover quotes word for word stands in the code so."""

    @property
    def template_file(self) -> Path:
        """The prompt."""
        return Path(__file__).with_name("templates") / "accurate_quotation.txt"
