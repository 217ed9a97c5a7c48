"""Agents that are chat models, and the groups of them that share one.

Names are imported on first use, so that reading parameters costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.agents.text.examples import PreferencePair
    from ratchet.agents.text.group_state import PureTextSharedModelGroupState
    from ratchet.agents.text.parameters import FineTuningParameters, TextAgentParameters
    from ratchet.agents.text.shared_model_group import PureTextSharedModelGroup
    from ratchet.agents.text.whole_agent import AgentOutput, CallContext, PureTextWholeAgent

__all__ = [
    "AgentOutput",
    "CallContext",
    "FineTuningParameters",
    "PreferencePair",
    "PureTextSharedModelGroup",
    "PureTextSharedModelGroupState",
    "PureTextWholeAgent",
    "TextAgentParameters",
]

_HOMES = {
    "AgentOutput": "ratchet.agents.text.whole_agent",
    "CallContext": "ratchet.agents.text.whole_agent",
    "FineTuningParameters": "ratchet.agents.text.parameters",
    "PreferencePair": "ratchet.agents.text.examples",
    "PureTextSharedModelGroup": "ratchet.agents.text.shared_model_group",
    "PureTextSharedModelGroupState": "ratchet.agents.text.group_state",
    "PureTextWholeAgent": "ratchet.agents.text.whole_agent",
    "TextAgentParameters": "ratchet.agents.text.parameters",
}


__getattr__ = lazy_names(__name__, _HOMES)
