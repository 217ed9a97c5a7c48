"""What decides a result (``HyperParameters``) and what must not (``ExperimentSettings``)."""

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
