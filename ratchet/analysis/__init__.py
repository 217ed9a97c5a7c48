"""Analysis of finished runs: a chat model judges the messages of their transcripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.analysis.base import Analyser as Analyser
    from ratchet.analysis.base import Verdict as Verdict
    from ratchet.analysis.base import analyser_names as analyser_names
    from ratchet.analysis.base import build_analyser as build_analyser
    from ratchet.analysis.base import register_analyser as register_analyser
    from ratchet.analysis.llm_judge import AnalysisModel as AnalysisModel
    from ratchet.analysis.messages import TranscriptMessage as TranscriptMessage
    from ratchet.analysis.results import AnalyserSummary as AnalyserSummary
    from ratchet.analysis.results import AnalysisSummary as AnalysisSummary
    from ratchet.analysis.run import analyse_run as analyse_run

export_lazily(__name__)

BUILT_IN = {
    "accurate_quotation": "ratchet.analysis.built_in",
    "code_quoting": "ratchet.analysis.built_in",
    "direct_quotation": "ratchet.analysis.built_in",
    "follow_up": "ratchet.analysis.built_in",
    "role_keeping": "ratchet.analysis.built_in",
}
"""Name → module that registers the analyser."""
