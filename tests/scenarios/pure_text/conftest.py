"""Text games with scripted agents: no model and no network."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ratchet import HyperParameters
from ratchet.protocols.handler import ProtocolHandler
from ratchet.protocols.registry import build_protocol_handler
from ratchet.rollouts.dataset import NestedArrayDictDataset
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.scenarios.pure_text.agents.whole_agent import AgentOutput
from ratchet.scenarios.pure_text.environment import PureTextEnvironment
from ratchet.scenarios.pure_text.views import AgentView, agent_view, build_prompt

NUM_DATAPOINTS = 4


@dataclass(frozen=True)
class Context:
    call_prefix: str = ""


def scripted_decision(seed: int, agent: str, round: int, eagerness: float = 0.3) -> int:
    """Return an agent's scripted decision, whether or not it may decide."""
    chance = random.Random(f"{seed}/{agent}/{round}")
    return chance.choice((0, 1)) if chance.random() < eagerness else 2


def scripted_text(seed: int, agent: str, round: int, channel: str) -> str | None:
    """Return an agent's scripted message, which is sometimes empty."""
    chance = random.Random(f"{seed}/{agent}/{round}/{channel}")
    return None if chance.random() < 0.1 else f"{agent} in {channel} at {round}: {chance.random()}"


class ScriptedAgent:
    """Scripted agent that stores its views."""

    def __init__(self, name: str, handler: ProtocolHandler, eagerness: float) -> None:
        self.name, self.handler, self.eagerness = name, handler, eagerness
        self.views: list[AgentView] = []

    async def act(self, view: AgentView, context: Context) -> AgentOutput:
        assert view.agent_name == self.name
        self.views.append(view)
        return self.action(view)

    def action(self, view: AgentView) -> AgentOutput:
        # In every channel, those out of turn too: they must change nothing.
        texts = {
            channel: text
            for channel in self.handler.message_channel_names
            if (text := scripted_text(view.seed, self.name, view.round, channel)) is not None
        }
        prompt = build_prompt(view, self.handler.text_agent_spec(self.name), "system")
        return AgentOutput(
            texts,
            raw_message=f"raw {self.name} {view.round}",
            prompt=tuple(prompt),
            decision=scripted_decision(view.seed, self.name, view.round, self.eagerness),
            confidence=(1 + view.seed % 3) / 3,
            retry_count=view.round,
            token_limit=view.round % 2 == 0,
            prompt_tokens=10 + view.round,
            completion_tokens=20 + view.round,
        )


def text_parameters(protocol: str, **changes: Any) -> HyperParameters:
    """Dotted paths are written with two underscores."""
    hyper_params = HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="generated",
        interaction_protocol=protocol,
    )
    return hyper_params.replace({key.replace("__", "."): v for key, v in changes.items()})


def text_dataset(size: int = NUM_DATAPOINTS) -> NestedArrayDictDataset:
    return NestedArrayDictDataset(
        NestedArrayDict(
            {
                "question": [f"question {i}" for i in range(size)],
                "solution": [f"solution {i}" for i in range(size)],
                "y": np.arange(size) % 2,
                "datapoint_id": np.arange(size),
            },
            size,
        )
    )


@dataclass
class TextGame:
    """An environment and the agents that play in it."""

    handler: ProtocolHandler
    environment: PureTextEnvironment
    agents: dict[str, ScriptedAgent]

    def outputs(self, state: NestedArrayDict) -> NestedArrayDict:
        """Return all agents' scripted actions in states [B]."""
        outputs = self.environment.action_spec.blank(len(state))
        for row in range(len(state)):
            for a, (name, agent) in enumerate(self.agents.items()):
                action = agent.action(agent_view(state, row, name, self.handler))
                outputs["agents", "raw_message"][row, a] = action.raw_message
                outputs["agents", "decision"][row, a] = action.decision
                for c, channel in enumerate(self.handler.message_channel_names):
                    outputs["agents", "message"][row, a, c] = action.messages.get(channel)
        return outputs


def text_game(
    protocol: str | type[ProtocolHandler], *, eagerness: float = 0.3, **changes: Any
) -> TextGame:
    if isinstance(protocol, str):
        hyper_params = text_parameters(protocol, **changes)
        handler = build_protocol_handler(hyper_params)
    else:
        hyper_params = text_parameters("nip", **changes)
        handler = protocol(hyper_params)
    environment = PureTextEnvironment(hyper_params, text_dataset(), handler, train=True)
    agents = {name: ScriptedAgent(name, handler, eagerness) for name in handler.agent_names}
    return TextGame(handler, environment, agents)


@pytest.fixture(scope="session")
def make_text_game() -> Callable[..., TextGame]:
    return text_game


@pytest.fixture(scope="session")
def make_text_parameters() -> Callable[..., HyperParameters]:
    return text_parameters


@pytest.fixture(scope="session")
def make_text_dataset() -> Callable[..., NestedArrayDictDataset]:
    return text_dataset


@pytest.fixture(scope="session")
def make_context() -> type[Context]:
    return Context


@pytest.fixture(scope="session")
def make_action() -> type[AgentOutput]:
    return AgentOutput


@pytest.fixture(scope="session")
def decision_script() -> Callable[..., int]:
    return scripted_decision


@pytest.fixture(scope="session")
def text_script() -> Callable[..., str | None]:
    return scripted_text
