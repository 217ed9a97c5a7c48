"""Agents on tensors: a body, heads, and all agents run as one actor.

Names are imported on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.agents.actions import FactorisedCategorical as FactorisedCategorical
    from ratchet.agents.actions import (
        MultiAgentDistribution as MultiAgentDistribution,
    )
    from ratchet.agents.actor_critic import PolicyOperator as PolicyOperator
    from ratchet.agents.actor_critic import ValueOperator as ValueOperator
    from ratchet.agents.combined import CombinedAgents as CombinedAgents
    from ratchet.agents.combined import RolloutCache as RolloutCache
    from ratchet.agents.lr_groups import ParameterGroup as ParameterGroup
    from ratchet.agents.networks.layers import ObservationNormalizer as ObservationNormalizer
    from ratchet.agents.parts import Agent as Agent
    from ratchet.agents.parts import AgentBody as AgentBody
    from ratchet.agents.parts import AgentInput as AgentInput
    from ratchet.agents.parts import AgentPart as AgentPart
    from ratchet.agents.parts import AgentPolicyHead as AgentPolicyHead
    from ratchet.agents.parts import AgentValueHead as AgentValueHead
    from ratchet.agents.parts import Perception as Perception
    from ratchet.agents.parts import PolicyLogits as PolicyLogits
    from ratchet.agents.parts import Representation as Representation
    from ratchet.agents.parts import SoloAgentHead as SoloAgentHead

export_lazily(__name__)
