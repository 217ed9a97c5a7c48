"""Agents that are chat models, and the groups of them that share one.

Names are imported on first use, so that reading parameters costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.parameters.chat_agents import FineTuningParameters as FineTuningParameters
    from ratchet.parameters.chat_agents import TextAgentParameters as TextAgentParameters
    from ratchet.scenarios.pure_text.agents.examples import PreferencePair as PreferencePair
    from ratchet.scenarios.pure_text.agents.group_state import (
        PureTextSharedModelGroupState as PureTextSharedModelGroupState,
    )
    from ratchet.scenarios.pure_text.agents.shared_model_group import (
        PureTextSharedModelGroup as PureTextSharedModelGroup,
    )
    from ratchet.scenarios.pure_text.agents.whole_agent import AgentOutput as AgentOutput
    from ratchet.scenarios.pure_text.agents.whole_agent import CallContext as CallContext
    from ratchet.scenarios.pure_text.agents.whole_agent import (
        PureTextWholeAgent as PureTextWholeAgent,
    )

export_lazily(__name__)
