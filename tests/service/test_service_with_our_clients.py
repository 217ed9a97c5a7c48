"""Ratchet's clients work with its service."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest

from ratchet.language_models.chat import ChatClient
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent
from ratchet.language_models.fine_tuning import FineTuneClient
from ratchet.language_models.types import ChatMessage, ChatRequest
from ratchet.scenarios.pure_text.agents.examples import (
    PreferencePair,
    preference_examples,
    sha256_of,
    to_lines,
)


def example(number):
    chat = [
        {"role": "system", "content": "Check it."},
        {"role": "user", "content": f"question {number}", "name": "Expert"},
        {"role": "assistant", "content": "Decision: accept"},
    ]
    return json.dumps({"messages": chat}) + "\n"


CONTENT = "".join(example(number) for number in range(10)).encode()
INTENT = FineTuneIntent(
    "ratchet-tiny",
    "supervised",
    hashlib.sha256(CONTENT).hexdigest(),
    {"n_epochs": 2},
    suffix="verifier",
    seed=3,
)


def test_a_model_is_called_trained_looked_up_and_called_again(running, monkeypatch):
    monkeypatch.setenv("RATCHET_LLM_URL", running.url)
    endpoint = Endpoint("embedded")
    chat, tuning = ChatClient(endpoint), FineTuneClient(endpoint)

    async def through():
        job = await tuning.ensure_job(INTENT, CONTENT)
        again = await FineTuneClient(endpoint).ensure_job(INTENT, CONTENT)
        done = (await tuning.wait([job.id], 0.02, 0.1))[job.id]
        request = ChatRequest(
            done.fine_tuned_model or "",
            (ChatMessage("user", "Hi", name="Expert"),),
            temperature=0.7,
            max_tokens=5,
            seed=1,
        )
        return job, again, done, await chat.complete(request)

    job, again, done, completion = asyncio.run(through())
    assert again.id == job.id
    assert done.status == "succeeded"
    assert done.trained_tokens
    assert completion.finish_reason in ("stop", "length")
    assert completion.prompt_tokens > 0
    with running.client() as client:
        named = [file for file in client.files.list() if INTENT.file_sha256 in file.filename]
        jobs = [j for j in client.fine_tuning.jobs.list() if j.training_file == named[0].id]
    assert len(named) == len(jobs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["supervised", "dpo"])
def test_transcripts_with_unusual_line_separators_can_be_trained_on(micro_service, method):
    """Line ends for Python, but not for JSON."""
    _, url = micro_service
    reply = "so\u2028it\u2029is\x85as\x0bI\x0csay\x1cto\x1dyou\x1e.\r\n"
    prompt = [{"role": "user", "content": f"{reply}?"}]
    if method == "supervised":
        examples = [{"messages": [*prompt, {"role": "assistant", "content": reply}]}] * 10
    else:
        examples = preference_examples([PreferencePair(json.dumps(prompt), reply, "no")] * 10)
    content = to_lines(examples)
    intent = FineTuneIntent("ratchet-tiny", method, sha256_of(content), {"n_epochs": 1})
    client = FineTuneClient(Endpoint(base_url=url))

    async def train():
        job = await client.ensure_job(intent, content)
        return (await client.wait([job.id], 0.1, 0.2))[job.id]

    job = asyncio.run(train())
    assert job.status == "succeeded", job.error
