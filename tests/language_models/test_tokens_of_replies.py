"""Log-probabilities and token ids: requested where needed, parsed in each service's format."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from local_services import Answer, chat_answer

from ratchet.language_models.chat import ChatClient
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.types import ChatMessage, ChatRequest, Completion
from ratchet.rollouts import ReplyTokens

PLAIN = ChatRequest("tiny", (ChatMessage("user", "Hi"),), seed=1)
BOTH = replace(PLAIN, logprobs=True, return_token_ids=True)
LOG_PROBS = (-0.1, -1e-17, -2.302585092994046)


def answered(**choice):
    body = chat_answer("yes")
    prompt = choice.pop("prompt_token_ids", None)
    body["choices"][0] |= choice
    return body if prompt is None else {**body, "prompt_token_ids": prompt}


def ask(service, quick, request, body):
    service.default = Answer(body=body)
    completion = asyncio.run(ChatClient(Endpoint(service.url), quick).complete(request))
    return completion, service.requests[-1].json


def content(log_probs=LOG_PROBS):
    return {"content": [{"token": "y", "bytes": [121], "logprob": p} for p in log_probs]}


def test_nothing_is_asked_for_unless_it_is_wanted(service, quick):
    completion, sent = ask(service, quick, PLAIN, answered(logprobs=content(), token_ids=[1]))
    assert completion.tokens is None
    assert sent.keys() == {"model", "messages", "seed"}
    assert "tokens" not in completion.to_dict()
    old = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "seed": 1}
    assert PLAIN.to_dict() == old, "so that journals of earlier versions are replayed"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (answered(logprobs=content()), ReplyTokens(LOG_PROBS)),
        (
            answered(logprobs=content(), token_ids=[5, 6, 7], prompt_token_ids=[1, 2]),
            ReplyTokens(LOG_PROBS, (5, 6, 7), (1, 2)),
        ),
        (answered(logprobs=None, token_ids=[5]), ReplyTokens(None, (5,))),
        (answered(logprobs={"content": []}), ReplyTokens(())),
        (answered(logprobs=None), None),
    ],
    ids=["openai", "vllm", "ids alone", "nothing written", "a service that has none"],
)
def test_what_services_say_is_read(service, quick, body, expected):
    completion, sent = ask(service, quick, BOTH, body)
    assert (sent["logprobs"], sent["return_token_ids"]) == (True, True)
    assert completion.tokens == expected
    kept = json.loads(json.dumps(completion.to_dict()))
    assert Completion.from_dict(kept) == completion


@pytest.mark.parametrize("spoilt", [{"content": [{"token": "y"}]}, "no", {"content": 3}])
def test_log_probabilities_that_say_nothing_are_asked_for_again(service, quick, spoilt):
    service.script = [Answer(body=answered(logprobs=spoilt))]
    completion, _ = ask(service, quick, BOTH, answered(logprobs=content()))
    assert completion.tokens == ReplyTokens(LOG_PROBS)
    assert len(service.requests) == 2


def test_requests_with_and_without_are_different_calls():
    digests = {
        replace(PLAIN, logprobs=one, return_token_ids=other).digest()
        for one in (False, True)
        for other in (False, True)
    }
    assert len(digests) == 4
    assert ChatRequest.from_dict(BOTH.to_dict()) == BOTH
