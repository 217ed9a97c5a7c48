"""A nip game whose agents call a local service, and their views of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.parameters import ExperimentSettings, HyperParameters
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.pure_text.agents.whole_agent import PureTextWholeAgent
from ratchet.scenarios.pure_text.views import AgentView

sys.path.insert(0, str(Path(__file__).parents[2] / "language_models"))

from local_services import (
    Answer,
    FineTuneService,
    LocalService,
    Request,
    chat_answer,
)


class ChatService(LocalService):
    """Returns ``replies`` in turn, then repeats the last; stores its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[tuple[str, str]] = [("Question: why?", "stop")]
        self.asked: list[dict[str, Any]] = []

    def answer(self, request: Request) -> Answer:
        with self.lock:
            self.asked.append(request.json)
            place = min(len(self.asked), len(self.replies)) - 1
        return Answer(body=chat_answer(*self.replies[place]))


class Prompts:
    def render(self, view: AgentView, /) -> str:
        return f"You are the {view.agent_name}. {view.question}"


def text_parameters(**agents: dict[str, Any]) -> HyperParameters:
    return HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="generated",
        nip_protocol={"max_message_rounds": 3},
        agents=agents,
    )


def make_agents(
    hyper_params: HyperParameters, settings: ExperimentSettings | None = None
) -> dict[str, PureTextWholeAgent]:
    handler = build_protocol_handler(hyper_params)
    settings = settings or ExperimentSettings()
    return {
        name: PureTextWholeAgent(hyper_params, settings, name, handler, Prompts())
        for name in handler.agent_names
    }


def view(agent: str = "verifier", round: int = 0, **changes: Any) -> AgentView:
    values: dict[str, Any] = {
        "agent_name": agent,
        "round": round,
        "question": "Add two numbers.",
        "solution": "a + b",
        "stance": None,
        "seed": 3,
        "own_raw_messages": (),
        "messages": (),
        "is_last_round": False,
        "headers": {"main": "Question:"},
        "may_decide": True,
        "channels": ("main",),
        "names": {"prover": "Prover", "verifier": "Verifier"},
        "datapoint_id": 42,
    }
    return AgentView(**{**values, **changes})


@pytest.fixture
def chat_service() -> Iterator[ChatService]:
    """A chat service."""
    service = ChatService()
    yield service
    service.close()


@pytest.fixture
def fine_tune_service() -> Iterator[FineTuneService]:
    """A fine-tune service."""
    service = FineTuneService()
    yield service
    service.close()


@pytest.fixture
def game() -> Any:
    """``parameters``, ``agents`` and ``view`` of a nip game."""

    class Game:
        parameters = staticmethod(text_parameters)
        agents = staticmethod(make_agents)
        view = staticmethod(view)

    return Game
