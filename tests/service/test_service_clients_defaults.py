"""Additional fields that clients send and read; raw HTTP."""

from __future__ import annotations

import httpx
import pytest

ASK = {"model": "ratchet-tiny", "messages": [{"role": "user", "content": "?"}], "seed": 1}


def _post(running, path="/v1/chat/completions", **more):
    return httpx.post(f"{running.url}{path}", json={**ASK, **more}, timeout=30)


@pytest.mark.parametrize(
    "harmless",
    [
        {"tools": []},
        {"store": False},
        {"store": True, "metadata": {"run": "1"}},
        {"logit_bias": {}},
        {"logit_bias": None, "n": None, "stop": None, "max_tokens": None, "stream": None},
        {"parallel_tool_calls": True, "tool_choice": "auto"},
        {"modalities": ["text"], "audio": None, "prediction": None},
        {"service_tier": "auto", "safety_identifier": "x", "prompt_cache_key": "y"},
        {"response_format": {"type": "text"}},
    ],
)
def test_fields_with_default_values_have_no_effect(running, harmless):
    plain = _post(running).json()["choices"]
    answer = _post(running, **harmless)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == plain


def test_messages_may_contain_additional_client_fields(running):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]},
        {
            "role": "assistant",
            "content": None,
            "refusal": "no",
            "annotations": [],
            "reasoning_content": "hm",
            "function_call": None,
            "audio": None,
        },
        {"role": "user", "content": "b", "name": "P", "id": "x"},
    ]
    assert _post(running, messages=messages).status_code == 200
    asked = running.engine.batches[-1][0].messages
    assert [(m.role, m.content, m.name) for m in asked] == [
        ("user", "a", None),
        ("assistant", "", None),
        ("user", "b", "P"),
    ]


def test_every_response_has_a_unique_request_id(running):
    ids = {
        _post(running).headers["x-request-id"],
        _post(running, model="none").headers["x-request-id"],
        _post(running, path="/nowhere").headers["x-request-id"],
        httpx.get(f"{running.url}/v1/models", headers={"host": "x"}).headers["x-request-id"],
    }
    assert len(ids) == 4
    assert all(number.startswith("req_") for number in ids)


def test_responses_have_no_nulls_that_openais_lack(client, upload, running):
    upload(client)
    (entry, *_) = httpx.get(f"{running.url}/v1/files").json()["data"]
    assert not {"expires_at", "status_details"} & set(entry)
    job = client.fine_tuning.jobs.create(model="ratchet-tiny", training_file=entry["id"])
    shown = httpx.get(f"{running.url}/v1/fine_tuning/jobs/{job.id}").json()
    assert set(shown["method"]) == {"type", "supervised"}
    assert not [name for name, value in shown["hyperparameters"].items() if value is None]
    assert {"finished_at", "fine_tuned_model", "error", "trained_tokens"} <= set(shown)
    page = httpx.get(f"{running.url}/v1/files").json()
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
    assert _post(running).json()["choices"][0]["message"].keys() == {"role", "content", "refusal"}
