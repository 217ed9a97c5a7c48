"""``TextScenarioInstance``: the components of an experiment whose agents are chat models."""

from __future__ import annotations

from typing import TypeAlias

from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.scenarios.instance import ScenarioInstance
from ratchet.scenarios.pure_text.agent import TextAgent
from ratchet.scenarios.pure_text.environment import PureTextEnvironment

TextScenarioInstance: TypeAlias = ScenarioInstance[
    NestedArrayDictDataset, PureTextEnvironment, TextAgent
]
