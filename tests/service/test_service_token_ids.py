"""Token ids of Ratchet's service, under vLLM's names: read and written ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest
from micro_model import write_micro_model

from ratchet.language_models.chat import ChatClient
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.engines.interface import GenerationRequest
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.language_models.types import ChatMessage, ChatRequest

MODEL = "ratchet-tiny"
ASK = ChatRequest(
    MODEL, (ChatMessage("user", "add 4"),), max_tokens=12, seed=5, logprobs=True,
    return_token_ids=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_micro_model(tmp_path_factory.mktemp("ids") / "micro")


@pytest.fixture(scope="module")
def engine(folder):
    engine = TorchEngine()
    engine.load("m", folder)
    return engine


@pytest.fixture(scope="module")
def url(tmp_path_factory, running_service, folder):
    home = tmp_path_factory.mktemp("service")
    with running_service(home, TorchEngine(), model=folder).serving() as service:
        yield service.url if service.url.endswith("/v1") else f"{service.url}/v1"


def generated(engine, seed, **changes):
    asked = GenerationRequest(
        "m", (ChatMessage("user", "add 4"),), seed, max_tokens=40, logprobs=True, **changes
    )
    return engine.generate([asked])[0]


@pytest.mark.parametrize("stop", [(), ("a",)])
def test_every_token_has_its_log_probability_under_the_model(engine, folder, stop):
    """Including the end tokens, so that a trainer computes the same values for the ids."""
    ended = 0
    for seed in range(12):
        result = generated(engine, seed, token_ids=True, stop=stop)
        assert len(result.tokens) == len(result.token_ids) == result.completion_tokens
        assert len(result.prompt_ids) == result.prompt_tokens
        ended += result.finish_reason == "stop"
        whole = result.prompt_ids + result.token_ids
        read = GenerationRequest("m", (), 0, prompt=whole, echo=True, logprobs=True, max_tokens=0)
        scored = engine.generate([read])[0].prompt[len(result.prompt_ids) :]
        expected = [token.logprob for token in result.tokens]
        assert [token.logprob for token in scored] == pytest.approx(expected, abs=1e-5)
        decoded = ChatTokenizer(folder).decode(list(result.token_ids))
        assert decoded.startswith(result.text)
    assert ended


def test_requesting_ids_does_not_change_the_text(engine):
    for seed in range(4):
        plain, more = generated(engine, seed), generated(engine, seed, token_ids=True)
        assert (plain.text, plain.finish_reason) == (more.text, more.finish_reason)
        assert plain.token_ids == plain.prompt_ids == ()
        assert list(plain.tokens) == list(more.tokens)[: len(plain.tokens)]


def test_ratchets_client_gets_them_and_the_journal_replays_them_bit_for_bit(url, tmp_path):
    client = ChatClient(Endpoint(url))

    async def ask(request):
        with CallJournal(tmp_path / "calls.jsonl") as journal:
            found = await journal.call("r0", request, lambda: client.complete(request))
            return found, journal.calls_made

    (first, made), (again, made_again) = (asyncio.run(ask(ASK)) for _ in range(2))
    assert (made, made_again) == (1, 0)
    assert first == again
    assert len(first.tokens.token_ids) == len(first.tokens.log_probs) == first.completion_tokens
    assert len(first.tokens.prompt_token_ids) == first.prompt_tokens
    plain = asyncio.run(client.complete(replace(ASK, logprobs=False, return_token_ids=False)))
    assert plain == replace(first, tokens=None)


def test_they_are_returned_only_if_requested(url):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
    plain = httpx.post(f"{url}/chat/completions", json=body).json()
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]
    asked = httpx.post(f"{url}/chat/completions", json={**body, "return_token_ids": True}).json()
    assert asked["usage"]["prompt_tokens"] == len(asked["prompt_token_ids"])
    assert asked["choices"][0]["logprobs"] is None
    streamed = {**body, "return_token_ids": True, "stream": True}
    refused = httpx.post(f"{url}/chat/completions", json=streamed)
    assert refused.status_code == 400
    assert "return_token_ids" in refused.json()["error"]["message"]


def test_models_report_the_path_of_their_weights(url, folder):
    """As vLLM does, so that clients can locate adapters."""
    (model,) = httpx.get(f"{url}/models").json()["data"]
    assert model["root"] == str(folder)
    assert httpx.get(f"{url}/models/{MODEL}").json() == model
