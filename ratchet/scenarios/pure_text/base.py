"""Base class of scenarios for chat models, with their agents and instances."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ratchet.language_models.endpoints import EMBEDDED, EMBEDDED_URL_VARIABLE
from ratchet.parameters.chat_agents import TextAgentParameters
from ratchet.protocols.registry import playing_agents
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.scenarios.base import Scenario, ScenarioInstance
from ratchet.scenarios.pure_text.agents.shared_model_group import PureTextSharedModelGroup
from ratchet.scenarios.pure_text.agents.whole_agent import PureTextWholeAgent
from ratchet.scenarios.pure_text.environment import PureTextEnvironment
from ratchet.scenarios.pure_text.episode import Position

if TYPE_CHECKING:
    from ratchet.parameters.agents import AgentParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.service_fields import ServedModel
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.pure_text.agents.whole_agent import (
        AgentOutput,
        CallContext,
        SystemPromptSource,
    )
    from ratchet.scenarios.pure_text.views import AgentView


@dataclass(frozen=True)
class TextAgent:
    """A chat model that plays one agent's part."""

    name: str
    whole: PureTextWholeAgent
    parameters: TextAgentParameters

    async def act(self, view: AgentView, context: CallContext) -> AgentOutput:
        """Return the agent's actions for a view."""
        return await self.whole.act(view, context)


TextScenarioInstance: TypeAlias = ScenarioInstance[
    NestedArrayDictDataset, PureTextEnvironment, TextAgent
]


class TextScenario(Scenario):
    """Base of scenarios whose agents are chat models."""

    label: Callable[[Position], int] | None = None
    """Label of an episode, 0 or 1; None if labels are the datasets' ``y``.

    A scenario whose labels are made by play defines it as a method. It is called in a round with a
    decision or at the end of the episode, with the position after the round's messages, which may
    lack a solution. It must depend only on the position; it runs in threads, for several episodes
    at the same time. Until then, judgements read a ``y`` of 0, or that of the dataset, which needs
    none.
    """

    @classmethod
    def agent_parameters(cls) -> type[AgentParameters]:
        """Return the model of agents that are chat models."""
        return TextAgentParameters

    def needed_packages(self, hyper_params: HyperParameters) -> Sequence[str]:
        """Return the packages of the embedded service, if a model uses it."""
        if os.environ.get(EMBEDDED_URL_VARIABLE):
            return ()
        agents = playing_agents(hyper_params, self.base_dir).values()
        models: list[ServedModel] = [a for a in agents if isinstance(a, TextAgentParameters)]
        models += [each.model for each in self.asked_for_data(hyper_params)]
        is_embedded = any(m.base_url == EMBEDDED and not m.use_dummy_api for m in models)
        return ("tokenizers",) if is_embedded else ()

    @abstractmethod
    def build_datasets(self, hyper_params: HyperParameters) -> Mapping[str, NestedArrayDictDataset]:
        """Create the datasets, with the fields of :class:`PureTextEnvironment`."""

    @abstractmethod
    def build_system_prompts(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> SystemPromptSource:
        """Read the agents' system prompts.

        Raises
        ------
        ParameterError
            If a template or a variable in one is missing.
        """

    def load_dataset(self, directory: Path) -> NestedArrayDictDataset:
        """Read a dataset that was saved in a folder."""
        return NestedArrayDictDataset.load(directory)

    def build_environment(
        self,
        hyper_params: HyperParameters,
        dataset: NestedArrayDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
    ) -> PureTextEnvironment:
        """Create the environment of a dataset."""
        return PureTextEnvironment(
            hyper_params, dataset, protocol_handler, train=train, label=self.label
        )

    def build_agents(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        protocol_handler: ProtocolHandler,
    ) -> dict[str, TextAgent]:
        """Create the agents, by name in the protocol's order."""
        prompts = self.build_system_prompts(hyper_params, protocol_handler)
        agents = {}
        for name in protocol_handler.agent_names:
            pure_text_agent = PureTextWholeAgent(
                hyper_params, settings, name, protocol_handler, prompts
            )
            agents[name] = TextAgent(name, pure_text_agent, pure_text_agent.parameters)
        return agents

    def build_shared_model_groups(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        agents: Mapping[str, TextAgent],
    ) -> dict[str, PureTextSharedModelGroup]:
        """Create the groups of agents that share a model, by name; each agent is in one."""
        members: dict[str, list[PureTextWholeAgent]] = {}
        for name, agent in agents.items():
            group = agent.parameters.shared_model_group or name
            members.setdefault(group, []).append(agent.whole)
        return {
            name: PureTextSharedModelGroup(hyper_params, settings, name, wholes)
            for name, wholes in members.items()
        }

    def build_instance(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        protocol_handler: ProtocolHandler,
        datasets: Mapping[str, NestedArrayDictDataset],
        trainer_type: str,
    ) -> TextScenarioInstance:
        """Build environments, agents and their model groups, and put all together."""
        environments = {
            name: self.build_environment(
                hyper_params, dataset, protocol_handler, train=name == "train"
            )
            for name, dataset in datasets.items()
        }
        agents = self.build_agents(hyper_params, settings, protocol_handler)
        return ScenarioInstance(
            hyper_params=hyper_params,
            settings=settings,
            protocol_handler=protocol_handler,
            datasets=dict(datasets),
            environments=environments,
            agents=agents,
            shared_model_groups=self.build_shared_model_groups(hyper_params, settings, agents),
        )
