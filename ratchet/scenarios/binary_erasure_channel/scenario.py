"""The binary-erasure-channel scenario: data, environment and agents together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ratchet.agents.combined import CombinedAgents
from ratchet.scenarios.binary_erasure_channel.agents import (
    ErasureAgentBuilder,
    ErasurePerception,
)
from ratchet.scenarios.binary_erasure_channel.dataset import build_erasure_datasets
from ratchet.scenarios.binary_erasure_channel.environment import ErasureEnvironment
from ratchet.scenarios.registry import register_scenario
from ratchet.scenarios.tensor_scenario import TensorScenario

if TYPE_CHECKING:
    import torch

    from ratchet.agents.parts import Agent
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.dataset import TensorDictDataset


@register_scenario("binary_erasure_channel")
class BinaryErasureChannelScenario(TensorScenario):
    """Agents find out a bit that reaches the verifier through a channel that erases."""

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Make ``train`` and ``test``."""
        return build_erasure_datasets(hyper_params)

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Give the code that deals only."""
        return (build_erasure_datasets,)

    def build_environment(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        device: str | torch.device = "cpu",
    ) -> ErasureEnvironment:
        """Make the environment of a dataset."""
        return ErasureEnvironment(
            hyper_params, dataset, protocol_handler, train=train, device=device
        )

    def build_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        trainer_type: str,
        device: str | torch.device = "cpu",
    ) -> dict[str, Agent]:
        """Make the agents with their initial weights."""
        builder = ErasureAgentBuilder()
        return builder.build_agents(hyper_params, protocol_handler, trainer_type, device)

    def combine_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        agents: Mapping[str, Agent],
    ) -> CombinedAgents:
        """Make the module that runs all agents as one actor."""
        return CombinedAgents(agents, protocol_handler, hyper_params, ErasurePerception())
