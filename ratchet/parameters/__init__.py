"""Parameters that affect results (``HyperParameters``) and settings that do not."""

from ratchet.parameters.agents import AgentParameters, AgentsParameters, LrFactors
from ratchet.parameters.base import (
    SECTIONS,
    SubParameters,
    register_agent_parameters,
    register_parameters,
)
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings

__all__ = [
    "SECTIONS",
    "AgentParameters",
    "AgentsParameters",
    "ExperimentSettings",
    "HyperParameters",
    "LrFactors",
    "SubParameters",
    "register_agent_parameters",
    "register_parameters",
]

BUILT_IN = (
    "ratchet.parameters.options",
    "ratchet.parameters.trainers",
    "ratchet.parameters.language",
    "ratchet.parameters.protocols",
    "ratchet.parameters.text_trainers",
    "ratchet.scenarios.binary_erasure_channel.parameters",
    "ratchet.scenarios.code_validation.parameters",
    "ratchet.scenarios.graph_isomorphism.parameters",
    "ratchet.scenarios.gymnasium.parameters",
    "ratchet.scenarios.image_classification.parameters",
    "ratchet.scenarios.language_task.parameters",
)
"""The modules that register sections and agents' parameters."""
