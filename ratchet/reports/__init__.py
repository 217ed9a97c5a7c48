"""Reports: one self-contained HTML page for a run, or for several beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.reports.report import build_comparison, build_report

__all__ = ["build_comparison", "build_report"]

__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, "ratchet.reports.report"))
