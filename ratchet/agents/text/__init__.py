"""Agents that are chat models, and the groups of them that share one.

Names are imported on first use, so that reading parameters costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.agents.text.parameters import FineTuningParameters, TextAgentParameters

__all__ = ["FineTuningParameters", "TextAgentParameters"]

_HOMES = {
    "FineTuningParameters": "ratchet.agents.text.parameters",
    "TextAgentParameters": "ratchet.agents.text.parameters",
}


__getattr__ = lazy_names(__name__, _HOMES)
