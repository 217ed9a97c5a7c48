"""Games played in text by chat models: episodes, what agents see, prompts and replies.

Names are imported on first use; inside Ratchet the concrete modules are imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.scenarios.pure_text.environment import PureTextEnvironment
    from ratchet.scenarios.pure_text.parsing import ParsedCompletion, parse_completion
    from ratchet.scenarios.pure_text.prompts import build_prompt
    from ratchet.scenarios.pure_text.rollout import play_step, sample_rollout
    from ratchet.scenarios.pure_text.views import AgentView, agent_view

__all__ = [
    "AgentView",
    "ParsedCompletion",
    "PureTextEnvironment",
    "agent_view",
    "build_prompt",
    "parse_completion",
    "play_step",
    "sample_rollout",
]

_HOMES = {
    "AgentView": "ratchet.scenarios.pure_text.views",
    "ParsedCompletion": "ratchet.scenarios.pure_text.parsing",
    "PureTextEnvironment": "ratchet.scenarios.pure_text.environment",
    "agent_view": "ratchet.scenarios.pure_text.views",
    "build_prompt": "ratchet.scenarios.pure_text.prompts",
    "parse_completion": "ratchet.scenarios.pure_text.parsing",
    "play_step": "ratchet.scenarios.pure_text.rollout",
    "sample_rollout": "ratchet.scenarios.pure_text.rollout",
}


__getattr__ = lazy_names(__name__, _HOMES)
