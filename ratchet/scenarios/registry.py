"""What a scenario must offer, and the registry of scenarios by name.

A built-in scenario is a package here with a module ``scenario``; it is imported when it is asked
for, so that an edit of one leaves the code fingerprints of the others alone.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

import ratchet.scenarios
from ratchet.errors import ParameterError, UnknownNameError, nearest

if TYPE_CHECKING:
    import torch

    from ratchet.agents.combined import CombinedAgents
    from ratchet.agents.parts import Agent
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.environment import Environment


class Scenario(ABC):
    """Builds the components of an experiment on one kind of data."""

    @abstractmethod
    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Make the datasets: ``train``, ``test`` and extra test sets by name."""

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Give the functions and classes whose code decides the datasets.

        All of the scenario by default; narrower, so that datasets outlive an edit of the agents.
        """
        return (type(self),)

    @abstractmethod
    def build_environment(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        device: str | torch.device = "cpu",
    ) -> Environment:
        """Make the environment of a dataset."""

    @abstractmethod
    def build_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        trainer_type: str,
        device: str | torch.device = "cpu",
    ) -> dict[str, Agent]:
        """Make the agents with their initial weights, by name in the protocol's order.

        Parameters
        ----------
        hyper_params, protocol_handler
            The experiment's.
        trainer_type
            ``"rl"``, ``"solo_agent"`` or a trainer's own: it decides which heads there are.
        device
            Where the weights lie. They don't depend on it.
        """

    @abstractmethod
    def combine_agents(
        self,
        hyper_params: HyperParameters,
        protocol_handler: ProtocolHandler,
        agents: Mapping[str, Agent],
    ) -> CombinedAgents:
        """Make the module that runs all agents as one actor."""


_SCENARIOS: dict[str, type[Scenario]] = {}
_ScenarioClass = TypeVar("_ScenarioClass", bound=type[Scenario])


def register_scenario(name: str) -> Callable[[_ScenarioClass], _ScenarioClass]:
    """Give a scenario the name that experiment files use.

    Raises
    ------
    ParameterError
        If another class has taken the name.
    """

    def decorate(scenario: _ScenarioClass) -> _ScenarioClass:
        known = _SCENARIOS.get(name)
        if known is not None and known.__qualname__ != scenario.__qualname__:
            raise ParameterError(
                f"scenario {name!r} is taken by {known.__module__}.{known.__qualname__}; got"
                f" {scenario.__module__}.{scenario.__qualname__}. Choose another name."
            )
        _SCENARIOS[name] = scenario
        return scenario

    return decorate


def scenario_names() -> list[str]:
    """List all scenarios, without importing any."""
    return sorted({*_SCENARIOS, *_built_in_names()})


def build_scenario(name: str) -> Scenario:
    """Make a scenario.

    Raises
    ------
    UnknownNameError
        If there is none of that name; the message has the nearest.
    """
    if name not in _SCENARIOS and name in _built_in_names():
        import_module(f"ratchet.scenarios.{name}.scenario")
    if name not in _SCENARIOS:
        raise UnknownNameError(f"scenario: unknown {name!r}.{nearest(name, scenario_names())}")
    return _SCENARIOS[name]()


def _built_in_names() -> list[str]:
    packages = [m.name for m in pkgutil.iter_modules(ratchet.scenarios.__path__) if m.ispkg]
    return [
        name
        for name in packages
        if importlib.util.find_spec(f"ratchet.scenarios.{name}.scenario") is not None
    ]
