"""The chat client against a real local service: completions, retries, errors, no leaked key."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import random
import time
import traceback
from dataclasses import replace

import pytest

from ratchet.errors import (
    ContentFilterError,
    LanguageModelError,
    MissingKeyError,
    ParameterError,
    PromptTooLongError,
    UnexpectedFinishError,
)
from ratchet.language_models.chat import ChatClient, shared_chat_client
from ratchet.language_models.connection import _Turns
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.rate_limits import RateLimiter, SlidingWindow
from ratchet.language_models.retrying import (
    RetryPolicy,
    TransientError,
    retry_after_seconds,
    with_retries,
)
from ratchet.language_models.types import ChatMessage, ChatRequest, Completion
from ratchet.parameters.hyper_parameters import HyperParameters

KEY = "sk-very-secret-0123456789"
REQUEST = ChatRequest(
    model="tiny",
    messages=(ChatMessage("system", "Play."), ChatMessage("user", "Hi", name="Prover")),
    temperature=0.5,
    max_tokens=20,
    seed=7,
    stop=("END",),
)


@pytest.fixture
def client(service, quick):
    return ChatClient(Endpoint(service.url), quick)


def ask(client, request=REQUEST):
    return asyncio.run(client.complete(request))


def test_a_repetition_penalty_is_sent_only_where_it_is_set(service, client):
    ask(client, replace(REQUEST, repetition_penalty=1.2))
    assert service.requests[-1].json["repetition_penalty"] == 1.2
    ask(client)
    assert "repetition_penalty" not in service.requests[-1].json


def test_the_request_says_all_and_the_completion_is_read(service, client):
    assert ask(client) == Completion("Hello", "stop", 11, 7, "tiny-1")
    (sent,) = service.requests
    assert sent.path == "/v1/chat/completions"
    assert sent.json == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Play."},
            {"role": "user", "content": "Hi", "name": "Prover"},
        ],
        "temperature": 0.5,
        "max_tokens": 20,
        "seed": 7,
        "stop": ["END"],
    }
    assert ChatRequest.from_dict(REQUEST.to_dict()) == REQUEST


def test_one_client_works_in_several_event_loops_and_leaves_nothing_open(service, client, recwarn):
    for _ in range(3):
        ask(client)
    assert len(service.requests) == 3
    assert not [w for w in recwarn if issubclass(w.category, ResourceWarning)]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
def test_what_may_pass_is_tried_again(service, client, answer, error, status):
    service.script = [answer(status, error("busy")), answer(status, error("busy"))]
    assert ask(client).text == "Hello"
    assert len(service.requests) == 3


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (400, "Shorten it", "context_length_exceeded"),
        (400, "This model's maximum context length is 4096 tokens", None),
        (422, "the request exceeds the available context size", "400"),
        (413, "Payload too large", None),
    ],
)
def test_a_prompt_that_is_too_long_has_an_error_of_its_own(
    service, client, answer, error, status, message, code
):
    service.script = [answer(status, error(message, code))]
    with pytest.raises(PromptTooLongError, match=message):
        ask(client)
    service.script = [answer(400, error("max_tokens is too large", "invalid"))]
    with pytest.raises(LanguageModelError) as caught:
        ask(client)
    assert not isinstance(caught.value, PromptTooLongError)


def test_a_cut_connection_and_a_time_out_are_tried_again(service, quick, answer, chat):
    client = ChatClient(Endpoint(service.url, timeout_seconds=0.3), quick)
    service.script = [answer(cut=True), answer(body=chat(), delay=1.0)]
    assert ask(client).text == "Hello"
    assert len(service.requests) == 3


def test_an_answer_that_is_no_completion_is_tried_again_then_an_error(service, client, answer):
    service.script = [answer(body=b"<html>oops</html>")]
    assert ask(client).text == "Hello"
    service.default = answer(body={"choices": []})
    with pytest.raises(LanguageModelError, match=r"failed 4 times.*not a completion"):
        ask(client)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_not_tried_again(service, client, answer, error, status):
    service.script = [answer(status, error("no such thing"))]
    with pytest.raises(LanguageModelError, match=rf"answered {status}: no such thing"):
        ask(client)
    assert len(service.requests) == 1


def test_an_empty_purse_is_not_tried_again(service, client, answer, error):
    service.script = [answer(429, error("You exceeded your quota", "insufficient_quota"))]
    with pytest.raises(LanguageModelError, match="quota"):
        ask(client)
    assert len(service.requests) == 1


def test_retry_after_is_honoured(service, client, answer, error):
    service.script = [answer(429, error("slow down"), {"Retry-After": "0.4"})]
    ask(client)
    first, second = service.requests
    assert 0.4 <= second.at - first.at < 2


def test_too_long_a_retry_after_is_an_error_at_once(service, client, answer, error):
    service.script = [answer(429, error("slow down"), {"Retry-After": "86400"})]
    with pytest.raises(LanguageModelError, match="requests a wait of 86400 s"):
        ask(client)


def test_retry_after_is_read_in_all_its_forms():
    assert retry_after_seconds({"retry-after": "2"}) == 2
    assert retry_after_seconds({"retry-after-ms": "250", "retry-after": "2"}) == 0.25
    assert (
        retry_after_seconds({"retry-after": email.utils.formatdate(1000, usegmt=True)}, 990) == 10
    )
    assert retry_after_seconds({"retry-after": email.utils.formatdate(1000)}, 1010) == 0
    assert retry_after_seconds({"retry-after": "soon"}) is None
    assert retry_after_seconds({}) is None


def test_the_wait_doubles_up_to_its_bound_with_jitter():
    policy = RetryPolicy(first_delay_seconds=1, max_delay_seconds=8)
    assert [policy.delay(n, None, 1.0) for n in range(5)] == [1, 2, 4, 8, 8]
    assert [policy.delay(n, None, 0.0) for n in range(2)] == [0.5, 1]
    assert policy.delay(0, 30, 0.0) == 30


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"finish": "content_filter"}, ContentFilterError),
        ({"text": "", "refusal": "I won't"}, ContentFilterError),
        ({"finish": "tool_calls"}, UnexpectedFinishError),
        ({"finish": "paused"}, UnexpectedFinishError),
    ],
)
def test_withheld_or_oddly_ended_completions_are_errors(service, client, answer, chat, body, kind):
    service.script = [answer(body=chat(**body))]
    with pytest.raises(kind):
        ask(client)
    assert len(service.requests) == 1


def test_a_cut_off_completion_says_so(service, client, answer, chat):
    service.script = [answer(body=chat(finish="length"))]
    assert ask(client).finish_reason == "length"


def test_a_filter_that_refuses_the_prompt_is_one_too(service, client, answer, error):
    service.script = [answer(400, error("violates policy", "content_filter"))]
    with pytest.raises(ContentFilterError):
        ask(client)


def test_no_key_in_errors_logs_or_reprs(service, quick, monkeypatch, caplog, answer, error):
    monkeypatch.setenv("LAB_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    client = ChatClient(Endpoint(service.url, api_key_name="LAB_KEY"), quick)
    service.default = answer(503, error(f"busy with {KEY}"))
    texts = []
    for status in (401, 429, 503):
        service.script = [answer(status, error(f"Incorrect API key provided: {KEY}"))]
        with pytest.raises(LanguageModelError) as caught:
            ask(client)
        texts += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
    assert service.requests[0].headers["authorization"] == f"Bearer {KEY}"
    texts += [caplog.text, repr(client), repr(client.endpoint), str(client.endpoint)]
    assert "[key]" in "".join(texts)
    assert all(KEY not in text for text in texts)


@pytest.mark.parametrize("url", ["http://me:hunter2@lab:9/v1", "http://lab:9/v1?key=hunter3"])
def test_a_url_with_a_secret_is_refused_and_not_shown(url):
    with pytest.raises(ParameterError, match="lab:9/v1") as caught:
        Endpoint(url)
    assert "hunter" not in str(caught.value)
    with pytest.raises(ParameterError, match="base_url") as caught:
        HyperParameters(
            scenario="code_validation",
            trainer="pure_text_ei",
            dataset="generated",
            agents={"prover": {"base_url": url}},
        )
    assert "hunter" not in "".join(traceback.format_exception(caught.value))


def test_no_key_goes_to_a_service_it_was_not_named_for(service, client, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    ask(client)
    assert KEY not in str(service.requests[0].headers)


def test_a_missing_key_says_which_variable(monkeypatch):
    with pytest.raises(MissingKeyError, match="OPENAI_API_KEY"):
        ask(ChatClient(Endpoint()))
    with pytest.raises(MissingKeyError, match="LAB_KEY"):
        ask(ChatClient(Endpoint("http://127.0.0.1:9", api_key_name="LAB_KEY")))
    monkeypatch.delenv("RATCHET_LLM_URL", raising=False)
    with pytest.raises(MissingKeyError, match="ratchet llm serve"):
        ask(ChatClient(Endpoint("embedded")))


def test_the_embedded_service_is_found_by_its_variable(service, monkeypatch):
    monkeypatch.setenv("RATCHET_LLM_URL", service.url)
    assert ask(ChatClient(Endpoint("embedded"))).text == "Hello"


def test_azures_form_of_the_api(service, quick, monkeypatch):
    monkeypatch.setenv("AZURE_KEY", KEY)
    url = service.url.removesuffix("/v1")
    endpoint = Endpoint(url, api_key_name="AZURE_KEY", api_version="2025-01-01")
    assert ask(ChatClient(endpoint, quick)).text == "Hello"
    (sent,) = service.requests
    assert sent.path == "/openai/deployments/tiny/chat/completions"
    assert sent.query == {"api-version": ["2025-01-01"]}
    assert sent.headers["api-key"] == KEY


def test_hundreds_are_in_flight_at_once(service, client, answer, chat):
    service.default = answer(body=chat(), delay=0.3)

    async def many():
        return await asyncio.gather(*(client.complete(REQUEST) for _ in range(200)))

    begin = time.perf_counter()
    assert len(asyncio.run(many())) == 200
    assert time.perf_counter() - begin < 5  # sequentially: 60 s


def test_a_window_grants_all_of_its_limit_in_order_and_counts_what_was_used():
    now = 0.0
    window = SlidingWindow(3, seconds=10, clock=lambda: now)
    grants = [window.reserve(amount) for amount in (1, 2, 1, 2)]
    assert [grant.at for grant in grants] == [0, 0, 10, 10]
    assert window.reserve(0).at == 10, "none overtakes another"
    window.correct(grants[3], 1)
    assert window.reserve(1).at == 10
    assert window.reserve(1).at == 20
    now = 15.0
    assert window.seconds_until(window.reserve(9)) == 15, "more than the limit, when it is empty"


def test_requests_keep_to_their_limit(service, quick):
    client = ChatClient(Endpoint(service.url), quick, RateLimiter(4, None, window_seconds=0.4))

    async def many():
        await asyncio.gather(*(client.complete(REQUEST) for _ in range(10)))

    asyncio.run(many())
    times = sorted(request.at for request in service.requests)
    assert all(later - earlier > 0.35 for earlier, later in zip(times, times[4:], strict=False))
    assert times[-1] - times[0] < 2


def test_tokens_keep_to_their_limit_with_what_was_used(service, quick):
    client = ChatClient(Endpoint(service.url), quick, RateLimiter(None, 40, window_seconds=0.4))

    async def three():
        for _ in range(3):  # 18 tokens each: two fit, the third waits
            await client.complete(REQUEST)

    asyncio.run(three())
    first, second, third = (request.at for request in service.requests)
    assert second - first < 0.3
    assert third - first > 0.35


def test_agents_of_one_endpoint_share_its_client():
    one = shared_chat_client(Endpoint("http://a/v1"), 10)
    assert one is shared_chat_client(Endpoint("http://a/v1"), 10)
    assert one is not shared_chat_client(Endpoint("http://b/v1"), 10)


def test_who_has_been_answered_sends_before_the_next_goes_on():
    """A request is sent by a separate task, which must not wait for all other callers."""
    log = []

    async def send(name):
        log.append(f"{name} sends")

    async def answered(name, turns):
        await turns.wait()
        log.append(f"{name} works")
        sending = asyncio.create_task(send(name))
        await asyncio.sleep(0.01)
        await sending

    async def play():
        turns = _Turns()
        await asyncio.gather(*(answered(name, turns) for name in "abc"))

    asyncio.run(play())
    assert log == [f"{name} {what}" for name in "abc" for what in ("works", "sends")]


def test_who_gives_up_waiting_holds_nobody_up():
    log = []

    async def answered(name, turns):
        await turns.wait()
        log.append(name)

    async def play():
        turns = _Turns()
        tasks = [asyncio.create_task(answered(name, turns)) for name in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(play())
    assert log == ["a", "c"]


def test_the_terminal_shows_once_that_a_service_does_not_respond(monkeypatch, caplog):
    async def busy():
        raise TransientError("cannot be reached")

    async def call_twice():
        calls = [with_retries(busy, RetryPolicy(7, 0.0), "model at URL") for _ in range(2)]
        await asyncio.gather(*calls, return_exceptions=True)

    monkeypatch.setattr("ratchet.language_models.retrying._WARNED", set())
    asyncio.run(call_twice())
    (warning,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert warning.getMessage() == "model at URL: cannot be reached; attempt 5 in 0.0 s"


def test_the_service_decides_the_wait_up_to_a_bound_and_the_attempts_end(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr("ratchet.language_models.retrying._JITTER", random.Random(0))
    monkeypatch.setattr("asyncio.sleep", sleep)
    policy = RetryPolicy(3, first_delay_seconds=1, max_retry_after_seconds=30)

    def failing(requested):
        attempts = iter(requested)

        async def attempt():
            try:
                raise TransientError("busy", retry_after=next(attempts))
            except StopIteration:
                return "reply"

        return asyncio.run(with_retries(attempt, policy, "call"))

    assert failing([None, 30.0]) == "reply", "the bound itself is waited"
    assert 0.5 <= waits[0] <= 1, "the first delay is not doubled"
    assert waits[1] >= 30
    with pytest.raises(LanguageModelError, match="call: failed 3 times"):
        failing([None, None, None])
    with pytest.raises(LanguageModelError, match="31"):
        failing([31.0])
