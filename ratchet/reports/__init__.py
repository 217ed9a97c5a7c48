"""Reports: HTML pages of runs, sweeps and comparisons of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.reports.report import build_comparison as build_comparison
    from ratchet.reports.report import build_report as build_report

export_lazily(__name__)
