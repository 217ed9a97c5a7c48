"""Agents that are chat models, and the groups of them that share one.

Names are imported on first use, so that reading parameters costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.parameters.chat_agents import (
        FineTuningParameters,
        TextAgentParameters,
    )
    from ratchet.scenarios.pure_text.agents.examples import PreferencePair
    from ratchet.scenarios.pure_text.agents.group_state import PureTextSharedModelGroupState
    from ratchet.scenarios.pure_text.agents.shared_model_group import PureTextSharedModelGroup
    from ratchet.scenarios.pure_text.agents.whole_agent import (
        AgentOutput,
        CallContext,
        PureTextWholeAgent,
    )

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
    "AgentOutput": "ratchet.scenarios.pure_text.agents.whole_agent",
    "CallContext": "ratchet.scenarios.pure_text.agents.whole_agent",
    "FineTuningParameters": "ratchet.parameters.chat_agents",
    "PreferencePair": "ratchet.scenarios.pure_text.agents.examples",
    "PureTextSharedModelGroup": "ratchet.scenarios.pure_text.agents.shared_model_group",
    "PureTextSharedModelGroupState": "ratchet.scenarios.pure_text.agents.group_state",
    "PureTextWholeAgent": "ratchet.scenarios.pure_text.agents.whole_agent",
    "TextAgentParameters": "ratchet.parameters.chat_agents",
}


__getattr__ = lazy_names(__name__, _HOMES)
