"""Which iterations a run's phases have, read from its parameters as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Span = tuple[str, int, int]
"""A phase's name, its first iteration, and the one after its last."""


def phase_spans(hyper_params: Mapping[str, Any]) -> list[Span]:
    """Return the phases of an arm in their order; none if it has none."""
    spans: list[Span] = []
    for phase in hyper_params.get("phases", ()):
        start = spans[-1][2] if spans else 0
        spans.append((str(phase["name"]), start, start + int(phase["num_iterations"])))
    return spans


def describe_phases(hyper_params: Mapping[str, Any]) -> str:
    """Write the phases as ``warm_up 0–15 · joint 15–45``; empty if there are none."""
    spans = phase_spans(hyper_params)
    return " · ".join(f"{name} {start}–{stop}" for name, start, stop in spans)
