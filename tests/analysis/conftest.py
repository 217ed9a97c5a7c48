"""A run folder with transcripts, and a scripted judge model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.language_models.types import ChatRequest, Completion


def transcript(rollout: int, *texts: str, stance: int = 1) -> dict[str, Any]:
    """Return a transcript with one message per round, by the prover and the verifier in turn."""
    agents = ("prover", "verifier")
    rounds = [
        {
            "round": place,
            "messages": [{"agent": agents[place % 2], "channel": "main", "text": text}],
            "raw": {},
            "decision": {},
        }
        for place, text in enumerate(texts)
    ]
    return {
        "rollout": rollout,
        "prover_stance": stance,
        "question": "Add two numbers.",
        "solution": "return a - b",
        "rewards": {"prover": 0.0, "verifier": 1.0},
        "rounds": rounds,
    }


@pytest.fixture
def write_file(tmp_path) -> Callable[..., Path]:
    """Return a function that writes ``run/transcripts/NAME.jsonl`` and returns the run folder."""

    def write(name: str, *transcripts: dict[str, Any]) -> Path:
        file = tmp_path / "run" / "transcripts" / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(one) + "\n" for one in transcripts))
        return tmp_path / "run"

    return write


@pytest.fixture
def run_folder(write_file) -> Path:
    """Write two files with three rollouts: four prover messages, one verifier message."""
    write_file("main/0", transcript(0, "It says a - b.", "Why?", "a + b, as `return a + b` says."))
    return write_file("main/test", transcript(0, "Fine.", "  "), transcript(1, "No code."))


class FakeModel:
    """Model that responds by a rule on the prompt and records the requests."""

    def __init__(self, rule: Callable[[str], str | Exception]) -> None:
        self.rule = rule
        self.asked: list[ChatRequest] = []

    async def complete(self, request: ChatRequest) -> Completion:
        self.asked.append(request)
        answer = self.rule(request.messages[-1].content)
        if isinstance(answer, Exception):
            raise answer
        return Completion(answer, "stop", 100, 10, request.model)


@pytest.fixture
def make_transcript() -> Callable[..., dict[str, Any]]:
    return transcript


@pytest.fixture
def fake_model() -> type[FakeModel]:
    return FakeModel
