"""Agents on tensors: a body, heads, and all agents run as one actor.

Names are imported on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.agents.actions.distributions import FactorisedCategorical, MultiAgentDistribution
    from ratchet.agents.combined import CombinedAgents, RolloutCache
    from ratchet.agents.lr_groups import ParameterGroup
    from ratchet.agents.networks.normalization import ObservationNormalizer
    from ratchet.agents.operators import PolicyOperator, ValueOperator
    from ratchet.agents.parts import (
        Agent,
        AgentBody,
        AgentInput,
        AgentPart,
        AgentPolicyHead,
        AgentValueHead,
        Perception,
        PolicyLogits,
        Representation,
        SoloAgentHead,
    )

__all__ = [
    "Agent",
    "AgentBody",
    "AgentInput",
    "AgentPart",
    "AgentPolicyHead",
    "AgentValueHead",
    "CombinedAgents",
    "FactorisedCategorical",
    "MultiAgentDistribution",
    "ObservationNormalizer",
    "ParameterGroup",
    "Perception",
    "PolicyLogits",
    "PolicyOperator",
    "Representation",
    "RolloutCache",
    "SoloAgentHead",
    "ValueOperator",
]

_HOMES = {
    **dict.fromkeys(
        (
            "Agent",
            "AgentBody",
            "AgentInput",
            "AgentPart",
            "AgentPolicyHead",
            "AgentValueHead",
            "Perception",
            "PolicyLogits",
            "Representation",
            "SoloAgentHead",
        ),
        "ratchet.agents.parts",
    ),
    "CombinedAgents": "ratchet.agents.combined",
    "RolloutCache": "ratchet.agents.combined",
    "FactorisedCategorical": "ratchet.agents.actions.distributions",
    "MultiAgentDistribution": "ratchet.agents.actions.distributions",
    "ObservationNormalizer": "ratchet.agents.networks.normalization",
    "ParameterGroup": "ratchet.agents.lr_groups",
    "PolicyOperator": "ratchet.agents.operators",
    "ValueOperator": "ratchet.agents.operators",
}


__getattr__ = lazy_names(__name__, _HOMES)
