"""The service with its own engine, trainer and base model, as a run starts it."""

from __future__ import annotations

import asyncio
import json
import time

import numpy as np
import openai
import pytest

from ratchet.language_models.chat import ChatClient
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.types import ChatRequest
from ratchet.scenarios.code_validation.tiny_model.corpus import expert_system
from ratchet.scenarios.code_validation.tiny_model.players import draw_exercise
from ratchet.service.launch import EmbeddedService

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with the base model."""
    home = tmp_path_factory.mktemp("home")
    with EmbeddedService.start(home):
        pass
    _wait_for_its_end(home)
    return home


@pytest.fixture
def service(home):
    with EmbeddedService.start(home) as service:
        yield service


def _wait_for_its_end(home):
    """Wait until the last service cannot be shared any more."""
    while (home / "llm" / "service.json").exists():
        time.sleep(0.05)


def _requests(model, count):
    rng = np.random.default_rng(0)
    return [
        ChatRequest(
            model, (expert_system(draw_exercise(rng), "accept"),), max_tokens=128, seed=seed
        )
        for seed in range(count)
    ]


def test_64_concurrent_chats_have_the_answers_of_sequential_ones(service):
    requests = _requests(service.model, 64)

    async def complete():
        client = ChatClient(Endpoint(base_url=service.url))
        alone = [await client.complete(request) for request in requests]
        return alone, list(await asyncio.gather(*map(client.complete, requests)))

    alone, together = asyncio.run(complete())
    assert together == alone


@pytest.mark.parametrize("method", ["supervised", "dpo"])
def test_a_trained_model_reproduces_its_training_answers(service, method):
    prompt = [{"role": "user", "content": "Verifier."}]
    good, bad = ([{"role": "assistant", "content": f"Decision: {w}"}] for w in ("accept", "reject"))
    if method == "supervised":
        example = {"messages": prompt + good}
    else:
        example = {
            "input": {"messages": prompt},
            "preferred_output": good,
            "non_preferred_output": bad,
        }
    data = (json.dumps(example) + "\n").encode() * 64
    with openai.OpenAI(base_url=service.url, api_key="none", max_retries=0) as client:
        file_id = client.files.create(file=("t.jsonl", data), purpose="fine-tune").id
        job = client.fine_tuning.jobs.create(
            model=service.model,
            training_file=file_id,
            method={"type": method, method: {"hyperparameters": {"n_epochs": 5}}},
            seed=1,
        )
        while job.status in ("queued", "running"):
            time.sleep(0.1)
            job = client.fine_tuning.jobs.retrieve(job.id)
        assert job.status == "succeeded", job.error
        events = [event.data for event in client.fine_tuning.jobs.list_events(job.id)]
        losses = [data["train_loss"] for data in reversed(events) if data]
        assert losses[-1] < losses[0]
        answer = client.chat.completions.create(
            model=job.fine_tuned_model, messages=prompt, temperature=0, max_tokens=20
        )
        if method == "supervised":
            assert answer.choices[0].message.content == "Decision: accept"
        else:
            assert answer.choices[0].message.content != "Decision: reject"
