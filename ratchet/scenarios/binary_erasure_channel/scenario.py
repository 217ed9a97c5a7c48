"""The binary-erasure-channel scenario: data, environment and agents together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ratchet.scenarios.binary_erasure_channel.agents import ErasureAgentBuilder
from ratchet.scenarios.binary_erasure_channel.dataset import build_erasure_datasets
from ratchet.scenarios.binary_erasure_channel.environment import ErasureEnvironment
from ratchet.scenarios.message_scenario import MessageScenario
from ratchet.scenarios.registry import register_scenario

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.dataset import TensorDictDataset


@register_scenario("binary_erasure_channel")
class BinaryErasureChannelScenario(MessageScenario):
    """Agents find out a bit that reaches the verifier through a channel that erases."""

    environment_class = ErasureEnvironment
    agent_builder = ErasureAgentBuilder

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Make ``train`` and ``test``."""
        return build_erasure_datasets(hyper_params)

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Return the code that deals only."""
        return (build_erasure_datasets,)
