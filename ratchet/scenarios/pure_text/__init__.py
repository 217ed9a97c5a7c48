"""Games in text for chat models: episodes, views of agents, prompts and replies.

Names are imported on first use; Ratchet itself imports the concrete modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment as PureTextEnvironment
    from ratchet.scenarios.pure_text.parsing import ParsedCompletion as ParsedCompletion
    from ratchet.scenarios.pure_text.parsing import parse_completion as parse_completion
    from ratchet.scenarios.pure_text.rollout import play_step as play_step
    from ratchet.scenarios.pure_text.rollout import sample_rollout as sample_rollout
    from ratchet.scenarios.pure_text.views import AgentView as AgentView
    from ratchet.scenarios.pure_text.views import agent_view as agent_view
    from ratchet.scenarios.pure_text.views import build_prompt as build_prompt

export_lazily(__name__)
