"""Reports: one self-contained HTML page for a run, or for several beside each other."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.reports.report import build_comparison, build_report

__all__ = ["build_comparison", "build_report"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- a module attribute of any type
    """Import a public name from the module it lives in."""
    if name not in __all__:
        raise AttributeError(f"module 'ratchet.reports' has no attribute {name!r}")
    return getattr(import_module("ratchet.reports.report"), name)
