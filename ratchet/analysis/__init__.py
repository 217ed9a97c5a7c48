"""After a run: analysers that judge each message of its transcripts with a chat model.

Names are imported on first use, so that ``import ratchet.analysis`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.analysis.base import Analyser, Verdict
    from ratchet.analysis.judging import AnalysisModel
    from ratchet.analysis.messages import SpokenMessage
    from ratchet.analysis.registry import analyser_names, build_analyser, register_analyser
    from ratchet.analysis.run import analyse_run
    from ratchet.analysis.summary import AnalyserSummary, AnalysisSummary

__all__ = [
    "Analyser",
    "AnalyserSummary",
    "AnalysisModel",
    "AnalysisSummary",
    "SpokenMessage",
    "Verdict",
    "analyse_run",
    "analyser_names",
    "build_analyser",
    "register_analyser",
]

_HOMES = {
    "Analyser": "ratchet.analysis.base",
    "AnalyserSummary": "ratchet.analysis.summary",
    "AnalysisModel": "ratchet.analysis.judging",
    "AnalysisSummary": "ratchet.analysis.summary",
    "SpokenMessage": "ratchet.analysis.messages",
    "Verdict": "ratchet.analysis.base",
    "analyse_run": "ratchet.analysis.run",
    "analyser_names": "ratchet.analysis.registry",
    "build_analyser": "ratchet.analysis.registry",
    "register_analyser": "ratchet.analysis.registry",
}


__getattr__ = lazy_names(__name__, _HOMES)

BUILT_IN = {
    "accurate_quotation": "ratchet.analysis.quotation",
    "code_quoting": "ratchet.analysis.code_quoting",
    "direct_quotation": "ratchet.analysis.quotation",
    "follow_up": "ratchet.analysis.follow_up",
    "role_keeping": "ratchet.analysis.role_keeping",
}
"""Name → the module that registers the analyser."""
