"""Chats through OpenAI's client: complete, streamed, concurrent, and refused."""

from __future__ import annotations

import asyncio

import openai
import pytest

MISSING = "missing_required_parameter"
ASK = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "right?", "name": "P"}]


def _ask(client, **options):
    chosen = {"model": "ratchet-tiny", "messages": ASK, "seed": 1, **options}
    return client.chat.completions.create(**chosen)


def test_an_answer_has_the_clients_types_and_counts(client):
    answer = _ask(client)
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert answer.model == "ratchet-tiny"
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_seed_determines_the_answer_and_n_answers_differ(client):
    first, again = _ask(client, n=5), _ask(client, n=5)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 5
    assert texts[0] == _ask(client).choices[0].message.content
    assert [choice.index for choice in first.choices] == list(range(5))
    assert len({_ask(client, seed=openai.NOT_GIVEN).choices[0].message.content for _ in "ab"}) == 2


def test_limits_stops_and_sampling_reach_the_engine(client, running):
    short = _ask(client, max_completion_tokens=2)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 2)
    assert _ask(client, max_tokens=2).choices[0].message.content == short.choices[0].message.content
    _ask(client)
    assert running.engine.batches[-1][0].repetition_penalty == 1.0
    extra = {"repetition_penalty": 1.5}
    _ask(client, temperature=0.25, top_p=0.5, stop=["a", "b"], seed=-1, extra_body=extra)
    request = running.engine.batches[-1][0]
    assert (request.temperature, request.top_p, request.stop) == (0.25, 0.5, ("a", "b"))
    assert request.repetition_penalty == 1.5
    assert request.seed == 2**63 - 1
    assert request.messages[1].name == "P"
    assert " " not in _ask(client, stop=" ").choices[0].message.content


def test_developer_is_system_and_parts_of_text_are_joined(client, running):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = _ask(client).choices[0].message.model_dump()
    _ask(client, messages=[{"role": "developer", "content": parts}, said])
    messages = running.engine.batches[-1][0].messages
    assert [(message.role, message.content) for message in messages] == [
        ("system", "ab"),
        ("assistant", said["content"]),
    ]


def test_log_probabilities_are_per_token(client):
    content = _ask(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    text = _ask(client).choices[0].message.content
    assert [token.token for token in content] == text.split()
    assert all(len(token.top_logprobs) == 3 and token.logprob == -0.5 for token in content)
    assert bytes(content[0].bytes).decode() == content[0].token


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_adds_up_to_the_complete_answer(client, n):
    whole = _ask(client, n=n, logprobs=True)
    pieces = [""] * n
    tokens = [0] * n
    reasons = {}
    usage = None
    options = {"include_usage": True}
    for chunk in _ask(client, n=n, logprobs=True, stream=True, stream_options=options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces[choice.index] += choice.delta.content or ""
            tokens[choice.index] += len(choice.logprobs.content) if choice.logprobs else 0
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    assert pieces == [choice.message.content for choice in whole.choices]
    assert tokens == [len(choice.logprobs.content) for choice in whole.choices]
    assert set(reasons.values()) == {"stop"}
    assert usage == whole.usage


def test_the_clients_own_stream_reader_accepts_the_stream(client):
    with client.chat.completions.stream(model="ratchet-tiny", messages=ASK, seed=1) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == _ask(client).choices[0].message.content


def test_async_clients_send_concurrent_requests(running):
    async def ask_all():
        async with running.async_client() as client:
            answers = await asyncio.gather(*(_ask(client, seed=seed) for seed in range(20)))
            stream = await _ask(client, seed=3, stream=True)
            return answers, "".join([c.choices[0].delta.content or "" async for c in stream])

    answers, streamed = asyncio.run(ask_all())
    texts = [answer.choices[0].message.content for answer in answers]
    assert len(set(texts)) == 20
    assert streamed == texts[3]


@pytest.mark.parametrize(
    ("options", "status", "param", "code"),
    [
        ({"model": "gpt-none"}, 404, "model", "model_not_found"),
        ({"messages": []}, 400, "messages", "invalid_value"),
        ({"messages": [{"role": "robot", "content": ""}]}, 400, "messages[0]", "invalid_value"),
        (
            {"messages": [{"role": "user"}]},
            400,
            "messages[0].content",
            "missing_required_parameter",
        ),
        ({"temperature": 2.5}, 400, "temperature", "invalid_value"),
        ({"top_p": 0}, 400, "top_p", "invalid_value"),
        ({"top_logprobs": 2}, 400, None, "invalid_value"),
        ({"n": "2"}, 400, "n", "invalid_value"),
        ({"functions": [{"name": "f"}]}, 400, "functions", "unsupported_parameter"),
        ({"extra_body": {"temprature": 1}}, 400, "temprature", "unknown_parameter"),
        ({"extra_query": {"x": 1}}, 400, "x", "unknown_parameter"),
        (
            {"messages": [{"role": "user", "content": "a " * 3000}]},
            *(400, "messages", "context_length_exceeded"),
        ),
    ],
)
def test_an_invalid_request_is_refused_in_openais_format(client, options, status, param, code):
    with pytest.raises(openai.APIStatusError) as caught:
        _ask(client, **options)
    assert caught.value.status_code == status
    assert set(caught.value.body) == {"message", "type", "param", "code"}
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.type == "invalid_request_error"


def test_models_are_listed_and_the_base_model_cannot_be_deleted(client):
    assert [model.id for model in client.models.list()] == ["ratchet-tiny"]
    assert client.models.retrieve("ratchet-tiny").object == "model"
    with pytest.raises(openai.NotFoundError, match="The model 'x/y' does not exist"):
        client.models.retrieve("x/y")
    with pytest.raises(openai.PermissionDeniedError, match="is a base model"):
        client.models.delete("ratchet-tiny")
