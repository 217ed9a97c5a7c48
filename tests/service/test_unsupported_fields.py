"""Fields that have no effect are accepted; what is not supported is named as such."""

from __future__ import annotations

import json

import httpx
import openai
import pytest

CHAT = {"model": "ratchet-tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "ratchet-tiny", "input": "hi"}
WITHOUT_EFFECT = [
    ("chat/completions", CHAT, {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}}),
    ("chat/completions", CHAT, {"top_k": -1, "verbosity": "medium", "modalities": ["text"]}),
    ("chat/completions", CHAT, {"functions": [], "audio": None, "prediction": None}),
    ("responses", TEXT, {"background": False, "tools": [], "truncation": "disabled"}),
    ("responses", TEXT, {"text": {"verbosity": "medium"}, "previous_response_id": None}),
]
UNSUPPORTED = [
    ("chat/completions", CHAT, {"presence_penalty": 0.5}, "Omit it or send 0."),
    ("chat/completions", CHAT, {"frequency_penalty": -1}, "Omit it or send 0."),
    ("chat/completions", CHAT, {"logit_bias": {"1": 2}}, "Omit it or send {}."),
    ("chat/completions", CHAT, {"top_k": 5}, "Use 'top_p'"),
    ("chat/completions", CHAT, {"verbosity": "low"}, 'Omit it or send "medium".'),
    ("completions", {"model": "ratchet-tiny", "prompt": "a"}, {"suffix": "b"}, "Omit it"),
    ("embeddings", TEXT, {"dimensions": 8}, "Vectors have the model's width."),
    ("responses", TEXT, {"background": True}, "Omit it or send false."),
    ("responses", TEXT, {"previous_response_id": "resp_1"}, "send all messages in 'input'"),
    (
        "fine_tuning/jobs",
        {"model": "ratchet-tiny", "training_file": "f"},
        {"integrations": [{"type": "wandb"}]},
        "Omit it or send [].",
    ),
]


@pytest.mark.parametrize(("path", "body", "fields"), WITHOUT_EFFECT)
def test_values_without_effect_are_accepted(running, path, body, fields):
    answer = httpx.post(f"{running.url}/v1/{path}", json={**body, **fields})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("path", "body", "fields", "advice"), UNSUPPORTED)
def test_what_is_not_supported_is_named(running, path, body, fields, advice):
    answer = httpx.post(f"{running.url}/v1/{path}", json={**body, **fields})
    (name,) = fields
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", name)
    assert f"'{name}' is not supported here. " in error["message"]
    assert advice in error["message"]


def _supervised(**more):
    answer = {"role": "assistant", "content": "fine"}
    return {"messages": [{"role": "user", "content": "?"}, answer], **more}


def _preference(**more):
    return {
        "input": {"messages": [{"role": "user", "content": "?"}], **more},
        "preferred_output": [{"role": "assistant", "content": "yes", "tool_calls": []}],
        "non_preferred_output": [{"role": "assistant", "content": "no"}],
    }


TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "get", "arguments": "{}"}}


@pytest.mark.parametrize("example", [_supervised, _preference])
def test_examples_in_openais_documented_formats_are_accepted(client, upload, wait_for, example):
    line = json.dumps(example(tools=[], parallel_tool_calls=True)) + "\n"
    file = upload(client, data=line.encode() * 10)
    kind = "supervised" if example is _supervised else "dpo"
    job = client.fine_tuning.jobs.create(
        model="ratchet-tiny", training_file=file, method={"type": kind}
    )
    assert wait_for(client, job.id).status == "succeeded"


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (_supervised(tools=[TOOL]), "line 1, tools: "),
        (_preference(tools=[TOOL]), "line 1, input.tools: "),
        (
            _supervised(messages=[{"role": "assistant", "tool_calls": [CALL]}]),
            r"line 1, messages\[0\].tool_calls: ",
        ),
        (
            _supervised(messages=[{"role": "tool", "content": "5", "tool_call_id": "c"}]),
            r"line 1, messages\[0\]: ",
        ),
    ],
)
def test_tool_calls_cannot_be_trained_on(client, upload, line, where):
    with pytest.raises(openai.BadRequestError, match=f"{where}Tool calls cannot be trained on"):
        upload(client, data=(json.dumps(line) + "\n").encode() * 10)
