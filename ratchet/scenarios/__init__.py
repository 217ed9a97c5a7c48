"""Scenarios: the games, one package each, independent of each other.

Names are imported on first use, so that finding the scenarios' parameters costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.scenarios.base import Scenario as Scenario
    from ratchet.scenarios.base import ScenarioInstance as ScenarioInstance
    from ratchet.scenarios.dataset import DataCursor as DataCursor
    from ratchet.scenarios.dataset import TensorDictDataset as TensorDictDataset
    from ratchet.scenarios.environment import Environment as Environment
    from ratchet.scenarios.pure_text.base import TextScenario as TextScenario
    from ratchet.scenarios.pure_text.base import TextScenarioInstance as TextScenarioInstance
    from ratchet.scenarios.registry import build_scenario_instance as build_scenario_instance
    from ratchet.scenarios.registry import register_scenario as register_scenario
    from ratchet.scenarios.tensor_scenario import TensorScenario as TensorScenario

export_lazily(__name__)

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
"""Name → the module that registers it; its package has the parameters in ``parameters``."""
