"""Streams send tokens during generation."""

from __future__ import annotations

import json

import httpx
import pytest
from micro_model import write_micro_model

from ratchet.language_models.engines.interface import GenerationRequest
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.language_models.types import ChatMessage

CHAT = {"model": "ratchet-tiny", "messages": [{"role": "user", "content": "?"}], "seed": 1}
PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "ratchet-tiny", "prompt": "?", "seed": 1},
    "/v1/responses": {"model": "ratchet-tiny", "input": "?"},
}


def _text_of(line):
    """Return the text of a server-sent event of any API."""
    event = json.loads(line.removeprefix("data: "))
    if "choices" not in event:
        return event["delta"] if event["type"].endswith("text.delta") else ""
    choice = event["choices"][0]
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


@pytest.mark.parametrize("path", PATHS)
def test_the_first_words_arrive_before_the_last_are_generated(running, path):
    running.engine.go_on.clear()
    body = {**PATHS[path], "stream": True}
    texts = []
    try:
        with httpx.stream("POST", running.url + path, json=body, timeout=10) as response:
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                texts.append(_text_of(line))
                if texts[-1]:
                    running.engine.go_on.set()  # without it the engine would wait and fail
    finally:
        running.engine.go_on.set()
    assert response.status_code == 200
    pieces = [text for text in texts if text]
    assert len(pieces) > 1
    assert pieces[0] == "".join(pieces).split()[0]


def test_a_refused_stream_returns_an_error_response(running):
    long = [{"role": "user", "content": "a " * 3000}]
    answer = httpx.post(
        f"{running.url}/v1/chat/completions", json={**CHAT, "messages": long, "stream": True}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = TorchEngine()
    engine.load("m", write_micro_model(tmp_path_factory.mktemp("micro") / "m"))
    return engine


def _request(seed, **values):
    values = {"max_tokens": 30, "logprobs": True, **values}
    return GenerationRequest("m", (ChatMessage("user", "add 4"),), seed, **values)


def test_torch_streams_prefixes_of_its_result(engine):
    for seed in range(8):
        pieces = []
        (result,) = engine.generate([_request(seed, on_piece=pieces.append)])
        told = "".join(piece.text for piece in pieces)
        assert result.text.startswith(told)
        assert "\ufffd" not in told or "\ufffd" in result.text
        tokens = [token for piece in pieces for token in piece.tokens]
        assert tokens == list(result.tokens[: len(tokens)])
        assert len(pieces) > 1
        assert (result,) == tuple(engine.generate([_request(seed)]))


def test_torch_does_not_stream_a_possible_prefix_of_a_stop_text(engine):
    (whole,) = engine.generate([_request(5)])
    stop = whole.text[6:9]
    pieces = []
    (cut,) = engine.generate([_request(5, stop=(stop,), on_piece=pieces.append)])
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.text.startswith("".join(piece.text for piece in pieces))
