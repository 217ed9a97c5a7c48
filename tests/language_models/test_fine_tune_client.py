"""Each fine-tune job is made exactly once, whatever happens between asking and knowing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratchet.errors import FineTuneError, LanguageModelError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent, job_status
from ratchet.language_models.fine_tuning import FineTuneClient
from ratchet.scenarios.pure_text.agents.examples import sha256_of

CONTENT = b'{"messages": []}\n' * 10
INTENT = FineTuneIntent(
    "tiny", "supervised", sha256_of(CONTENT), {"n_epochs": 2}, suffix="prover", seed=3
)


@pytest.fixture
def client(fine_tune_service, quick):
    return FineTuneClient(Endpoint(fine_tune_service.url), policy=quick, settle_seconds=0.1)


def ensure(client, intent=INTENT, content=CONTENT):
    return asyncio.run(client.ensure_job(intent, content))


def test_a_job_says_all_and_carries_what_it_is_found_by(fine_tune_service, client):
    job = ensure(client)
    assert (job.id, job.status, job.attempt) == ("ftjob-0", "pending", 0)
    (sent,) = [r for r in fine_tune_service.requests if r.path.endswith("jobs") and r.body]
    assert sent.headers["idempotency-key"] == f"{INTENT.digest}:0"
    assert sent.json == {
        "model": "tiny",
        "training_file": "file-0",
        "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
        "suffix": "prover",
        "seed": 3,
        "metadata": {
            "ratchet_intent": INTENT.digest,
            "ratchet_attempt": "0",
            "idempotency_key": f"{INTENT.digest}:0",
        },
    }
    (file,) = fine_tune_service.files
    assert INTENT.file_sha256 in file["filename"]


@pytest.mark.parametrize(("filters", "keeps"), [(True, True), (False, True), (False, False)])
def test_asked_again_the_same_job_is_found_among_many(fine_tune_service, client, filters, keeps):
    """On the last page, with or without a filter; by its file where there is no metadata."""
    fine_tune_service.filters_metadata = filters
    fine_tune_service.keeps_metadata = keeps
    others = [
        FineTuneIntent("tiny", "dpo", sha256_of(CONTENT), {"n_epochs": epochs})
        for epochs in range(3, 6)
    ]

    async def several():
        jobs = [await client.ensure_job(intent, CONTENT) for intent in (INTENT, *others, INTENT)]
        return jobs[0].id, jobs[-1].id

    first, again = asyncio.run(several())
    assert first == again
    assert len(fine_tune_service.jobs) == 4


@pytest.mark.parametrize(
    "fates",
    [
        ["503 after"],
        ["cut after"],
        ["stall after"],
        ["503 before"],
        ["cut before"],
        ["503 before", "cut after"],
        ["cut before", "503 before", "503 after"],
    ],
)
def test_one_job_whatever_is_answered(fine_tune_service, quick, fates):
    fine_tune_service.on_create = list(fates)
    endpoint = Endpoint(fine_tune_service.url, timeout_seconds=0.5)
    job = ensure(FineTuneClient(endpoint, policy=quick, settle_seconds=0.05))
    assert [job.id] == [made["id"] for made in fine_tune_service.jobs]
    assert len(fine_tune_service.files) == 1


@pytest.mark.parametrize("lost", ["failed", "cancelled"])
def test_a_lost_job_is_followed_by_the_next_attempt(fine_tune_service, client, lost):
    for attempt in range(3):
        job = ensure(client)
        assert job.attempt == attempt
        assert ensure(client).id == job.id
        fine_tune_service.jobs[attempt]["status"] = lost
    keys = [job["metadata"]["idempotency_key"] for job in fine_tune_service.jobs]
    assert keys == [f"{INTENT.digest}:{attempt}" for attempt in range(3)]
    assert len(fine_tune_service.files) == 1


@pytest.mark.parametrize("status", ["paused", "validating_files", "running", "succeeded"])
def test_any_job_that_is_not_lost_is_adopted(fine_tune_service, client, status):
    ensure(client)
    fine_tune_service.jobs[0].update(status=status, fine_tuned_model="ft:tiny")
    assert ensure(client).id == "ftjob-0"
    assert len(fine_tune_service.jobs) == 1


def test_a_refused_job_is_an_error_with_the_reason(fine_tune_service, client):
    fine_tune_service.on_create = ["refused"]
    with pytest.raises(FineTuneError, match="model can't be fine-tuned"):
        ensure(client)
    assert not fine_tune_service.jobs


def test_a_service_that_never_makes_it_is_an_error(fine_tune_service, client):
    fine_tune_service.on_create = ["503 before"] * 10
    with pytest.raises(FineTuneError, match="failed 4 times"):
        ensure(client)


def test_two_at_once_make_one_job(fine_tune_service, quick, tmp_path):
    """Two arms of an experiment may want the same model at the same moment."""

    def one(_):
        endpoint = Endpoint(fine_tune_service.url)
        return ensure(FineTuneClient(endpoint, tmp_path / "locks", quick, 0.05))

    with ThreadPoolExecutor(4) as pool:
        jobs = set(pool.map(one, range(4)))
    assert len(jobs) == len(fine_tune_service.jobs) == 1


def test_unknown_statuses_are_not_final():
    assert job_status("paused") == job_status("brand_new") == "running"
    assert job_status("queued") == "pending"


def test_waiting_ends_when_all_are_final(fine_tune_service, client, answer):
    ensure(client)
    ensure(client, FineTuneIntent("tiny", "dpo", sha256_of(CONTENT)))
    steps = iter(["paused", "running", "running"])
    plain = fine_tune_service._answer

    def proceed(request):
        reply = plain(request)
        if request.path.endswith("ftjob-0"):
            status = next(steps, "succeeded")
            reply.body = {**reply.body, "status": status, "fine_tuned_model": "ft:a"}
        elif request.path.endswith("ftjob-1"):
            failure = {"code": "bad", "message": "out of memory", "param": None}
            reply.body = {**reply.body, "status": "failed", "error": failure}
        return reply

    fine_tune_service._answer = proceed
    done = asyncio.run(client.wait(["ftjob-0", "ftjob-1"], 0.01, 0.02))
    assert done["ftjob-0"].fine_tuned_model == "ft:a"
    assert done["ftjob-1"].error == "out of memory"


def test_a_success_without_a_model_is_an_error(fine_tune_service, client):
    ensure(client)
    fine_tune_service.jobs[0]["status"] = "succeeded"
    with pytest.raises(LanguageModelError, match="names no model"):
        asyncio.run(client.status("ftjob-0"))


_CREATOR = """
import asyncio, sys
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent
from ratchet.language_models.fine_tuning import FineTuneClient
import json
client = FineTuneClient(Endpoint(sys.argv[1]))
asyncio.run(client.ensure_job(FineTuneIntent.from_dict(json.loads(sys.argv[2])), {content!r}))
"""


@pytest.mark.slow
def test_killed_between_acceptance_and_record_the_job_is_adopted(fine_tune_service, client):
    import json

    fine_tune_service.on_create = ["stall after"]
    script = _CREATOR.format(content=CONTENT)
    intent = json.dumps(INTENT.to_dict())
    process = subprocess.Popen([sys.executable, "-c", script, fine_tune_service.url, intent])
    assert fine_tune_service.accepted.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert ensure(client).id == "ftjob-0"
    assert len(fine_tune_service.jobs) == len(fine_tune_service.files) == 1
