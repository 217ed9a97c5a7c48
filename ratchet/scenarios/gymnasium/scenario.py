"""Scenario of gymnasium and PettingZoo environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict

from ratchet.agents.lr_groups import check_shared_factors
from ratchet.errors import ParameterError
from ratchet.plugins import paths_from
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.gymnasium.actor_critic import ControlActorCritic
from ratchet.scenarios.gymnasium.catalogue import BatchedEnvSpec, needed_packages
from ratchet.scenarios.gymnasium.environment import (
    BatchedEnvironment,
    ControlEnvironment,
    SimulatedEnvironment,
)
from ratchet.scenarios.gymnasium.networks import ControlAgent, build_all_agents
from ratchet.scenarios.gymnasium.parameters import GymnasiumAgentParameters
from ratchet.scenarios.gymnasium.protocol import SimulatorProtocolHandler
from ratchet.scenarios.gymnasium.recurrence import RECURRENCES
from ratchet.scenarios.registry import register_scenario
from ratchet.scenarios.tensor_scenario import TensorScenario
from ratchet.seeding import numpy_generator

if TYPE_CHECKING:
    from ratchet.parameters.agents import AgentParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.scenarios.gymnasium.parameters import GymnasiumParameters

_SEED_BOUND = 2**31


def build_seed_datasets(hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
    """Sample the seeds of ``train`` and ``test``, all different.

    The number of training seeds does not affect those of tests.
    """
    section: GymnasiumParameters = hyper_params.gymnasium
    rng = numpy_generator(hyper_params.seed, "gymnasium", purpose="seeds")
    num_test, num_train = section.num_test_episodes, section.num_train_seeds
    drawn = dict.fromkeys(rng.integers(_SEED_BOUND, size=num_test).tolist())
    while len(drawn) < num_test + num_train:
        drawn |= dict.fromkeys(rng.integers(_SEED_BOUND, size=num_train).tolist())
    seeds = torch.tensor(list(drawn), dtype=torch.int64)
    parts = {"train": seeds[num_test : num_test + num_train], "test": seeds[:num_test]}
    return {
        name: TensorDictDataset(TensorDict({"seed": part}, batch_size=[len(part)]))
        for name, part in parts.items()
    }


@register_scenario("gymnasium")
class GymnasiumScenario(TensorScenario[ControlAgent]):
    """Agents act in an environment with rewards."""

    agent_registries = (RECURRENCES,)

    @classmethod
    def agent_parameters(cls) -> type[AgentParameters]:
        """Return the model of perceptrons."""
        return GymnasiumAgentParameters

    def needed_packages(self, hyper_params: HyperParameters) -> list[str]:
        """Return the packages that simulate the environment, unless it runs on tensors."""
        return needed_packages(hyper_params)

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Sample the seeds of initial states."""
        return build_seed_datasets(hyper_params)

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Return the code that draws seeds only."""
        return (build_seed_datasets,)

    def build_environment(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        device: str | torch.device = "cpu",
    ) -> ControlEnvironment:
        """Create the environment of a dataset."""
        game = _played(protocol_handler).game
        if isinstance(game, BatchedEnvSpec):
            return BatchedEnvironment(
                hyper_params, dataset, protocol_handler, train=train, game=game, device=device
            )
        return SimulatedEnvironment(
            hyper_params, dataset, protocol_handler, train=train, game=game, device=device
        )

    def check_hand_made(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler, name: str
    ) -> None:
        """Refuse it: there are no scripted agents."""
        _section(hyper_params, name)

    def build_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        trainer_type: str,
        device: str | torch.device = "cpu",
    ) -> dict[str, ControlAgent]:
        """Build the agents with their initial weights."""
        if trainer_type == "solo_agent" or hyper_params.pretrain_agents:
            path = "pretrain_agents" if hyper_params.pretrain_agents else "trainer"
            raise ParameterError(
                f"{path}: got {getattr(hyper_params, path)!r} with scenario 'gymnasium', which has"
                " no labels that an agent could learn alone. Train by reinforcement learning."
            )
        spaces = _played(protocol_handler).spaces
        sections = {name: _section(hyper_params, name) for name in spaces.names}
        check_shared_factors(hyper_params.rl, sections)
        with paths_from(self.base_dir):
            return build_all_agents(hyper_params, spaces, sections, device)

    def combine_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        agents: Mapping[str, ControlAgent],
    ) -> ControlActorCritic:
        """Create the module that runs all agents as one actor and critic."""
        return ControlActorCritic(
            agents,
            _played(protocol_handler).spaces,
            normalizes=hyper_params.rl.normalize_observations,
        )


def _played(protocol_handler: ProtocolHandler) -> SimulatorProtocolHandler:
    if not isinstance(protocol_handler, SimulatorProtocolHandler):
        raise ParameterError(
            f"interaction_protocol: got {type(protocol_handler).__name__} with scenario"
            " 'gymnasium', expected 'environment', since an environment defines its rules."
            " Leave it out."
        )
    return protocol_handler


def _section(hyper_params: HyperParameters, name: str) -> GymnasiumAgentParameters:
    section = hyper_params.agents[name]
    if not isinstance(section, GymnasiumAgentParameters):
        raise ParameterError(
            f"agents.{name}: got {type(section).__name__}, expected GymnasiumAgentParameters."
        )
    if section.use_manual_architecture:
        raise ParameterError(
            f"agents.{name}.use_manual_architecture: got True, but there is no scripted agent for"
            " environments. Leave it out."
        )
    return section
