"""``TextAgent``: an agent of a text scenario, as a scenario instance has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.parameters.chat_agents import TextAgentParameters
    from ratchet.scenarios.pure_text.agents.whole_agent import (
        AgentOutput,
        CallContext,
        PureTextWholeAgent,
    )
    from ratchet.scenarios.pure_text.views import AgentView


@dataclass(frozen=True)
class TextAgent:
    """A chat model that plays one agent's part."""

    name: str
    whole: PureTextWholeAgent
    parameters: TextAgentParameters

    async def act(self, view: AgentView, context: CallContext) -> AgentOutput:
        """Return what the agent does on what it sees."""
        return await self.whole.act(view, context)
