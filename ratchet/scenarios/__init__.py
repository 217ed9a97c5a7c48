"""What is played: one package a scenario, none knows another.

Names are imported on first use, so that finding the scenarios' parameters costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_names

if TYPE_CHECKING:
    from ratchet.scenarios.base import Scenario
    from ratchet.scenarios.building import build_scenario_instance
    from ratchet.scenarios.dataset import DataCursor, TensorDictDataset
    from ratchet.scenarios.environment import Environment
    from ratchet.scenarios.instance import ScenarioInstance
    from ratchet.scenarios.pure_text.base import TextScenario
    from ratchet.scenarios.pure_text.instance import TextScenarioInstance
    from ratchet.scenarios.registry import register_scenario
    from ratchet.scenarios.tensor_scenario import TensorScenario

__all__ = [
    "DataCursor",
    "Environment",
    "Scenario",
    "ScenarioInstance",
    "TensorDictDataset",
    "TensorScenario",
    "TextScenario",
    "TextScenarioInstance",
    "build_scenario_instance",
    "register_scenario",
]

_HOMES = {
    "DataCursor": "ratchet.scenarios.dataset",
    "Environment": "ratchet.scenarios.environment",
    "Scenario": "ratchet.scenarios.base",
    "ScenarioInstance": "ratchet.scenarios.instance",
    "TensorDictDataset": "ratchet.scenarios.dataset",
    "TensorScenario": "ratchet.scenarios.tensor_scenario",
    "TextScenario": "ratchet.scenarios.pure_text.base",
    "TextScenarioInstance": "ratchet.scenarios.pure_text.instance",
    "build_scenario_instance": "ratchet.scenarios.building",
    "register_scenario": "ratchet.scenarios.registry",
}


__getattr__ = lazy_names(__name__, _HOMES)

BUILT_IN = {
    name: f"ratchet.scenarios.{name}.scenario"
    for name in (
        "binary_erasure_channel",
        "code_validation",
        "graph_isomorphism",
        "gymnasium",
        "image_classification",
        "language_task",
    )
}
"""Name → the module that registers it; its parameters are in the module ``parameters`` beside."""
