"""Each fine-tune job is created exactly once, despite failures around its creation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from local_services import Answer

from ratchet.errors import FineTuneError, LanguageModelError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.exactly_once import CreationRequest, ExactlyOnceCreator
from ratchet.language_models.fine_tune_jobs import FineTuneIntent, job_status
from ratchet.language_models.fine_tuning import FineTuneClient
from ratchet.language_models.job_records import JobRecordFile
from ratchet.language_models.retrying import RetryPolicy, TransientError
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
    """On the last page, with or without a filter; by its file if there is no metadata."""
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
    """Two arms of an experiment may need the same model at the same moment."""

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


def test_whoever_waits_is_told_how_far_a_job_is(fine_tune_service, client):
    ensure(client)
    statuses = iter(["queued", "running", "running"])
    events = iter([["Job started", "Step 1/12: training loss=2"], ["Step 9/12: training loss=1"]])
    plain = fine_tune_service._answer

    def proceed(request):
        if request.path.split("?")[0].endswith("/events"):
            data = [
                {"id": "e", "object": "fine_tuning.job.event", "created_at": 0, "level": "info"}
                | {"message": message}
                for message in next(events)
            ]
            return Answer(body={"object": "list", "data": data, "has_more": False})
        reply = plain(request)
        if request.path.endswith("ftjob-0"):
            status = next(statuses, "succeeded")
            reply.body = {**reply.body, "status": status, "fine_tuned_model": "ft:a"}
        return reply

    fine_tune_service._answer = proceed
    looks = []
    asyncio.run(client.wait(["ftjob-0"], 0.01, on_look=lambda job: looks.append(job.standing)))
    expected = ["queued", "running, step 1 of 12", "running, step 9 of 12", "succeeded"]
    assert looks == expected


def test_a_service_without_events_is_waited_for_all_the_same(fine_tune_service, client):
    ensure(client)
    fine_tune_service.jobs[0]["status"] = "running"
    looks = []

    def look(job):
        looks.append(job.standing)
        fine_tune_service.jobs[0] |= {"status": "succeeded", "fine_tuned_model": "ft:a"}

    asyncio.run(client.wait(["ftjob-0"], 0.01, on_look=look))
    assert looks == ["running", "succeeded"]


def test_a_success_without_a_model_is_an_error(fine_tune_service, client):
    ensure(client)
    fine_tune_service.jobs[0]["status"] = "succeeded"
    with pytest.raises(LanguageModelError, match="names no model"):
        asyncio.run(client.status("ftjob-0"))


_CREATOR = """
import asyncio, json, sys
from pathlib import Path
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import FineTuneIntent
from ratchet.language_models.fine_tuning import FineTuneClient
client = FineTuneClient(Endpoint(sys.argv[1]), Path(sys.argv[2]))
asyncio.run(client.ensure_job(FineTuneIntent.from_dict(json.loads(sys.argv[3])), {content!r}))
"""


def kill_after_acceptance(service, folder):
    """Have another process request the job, and kill it when the service has accepted it."""
    service.on_create = ["stall after"]
    arguments = [service.url, str(folder), json.dumps(INTENT.to_dict())]
    script = _CREATOR.format(content=CONTENT)
    process = subprocess.Popen([sys.executable, "-c", script, *arguments])
    assert service.accepted.wait(240)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.in_turn(1)
@pytest.mark.slow
@pytest.mark.parametrize("keeps_metadata", [True, False])
@pytest.mark.parametrize("lag", [0.0, 3.0])
def test_killed_between_acceptance_and_record_the_job_is_adopted(
    fine_tune_service, quick, tmp_path, caplog, lag, keeps_metadata
):
    """No idempotency keys, and a list that shows the job later than the restart searches for it."""
    fine_tune_service.lag = lag
    fine_tune_service.keeps_metadata = keeps_metadata
    kill_after_acceptance(fine_tune_service, tmp_path)
    endpoint = Endpoint(fine_tune_service.url)
    again = ensure(FineTuneClient(endpoint, tmp_path, quick, settle_seconds=20))
    assert again.id == "ftjob-0"
    assert len(fine_tune_service.jobs) == 1
    assert ("may have been accepted; searching for its job" in caplog.text) == bool(lag)


@pytest.mark.slow
def test_killed_when_nothing_was_taken_the_job_is_made_after_the_wait(
    fine_tune_service, quick, tmp_path, caplog
):
    kill_after_acceptance(fine_tune_service, tmp_path)
    fine_tune_service.jobs.clear()  # as if the request had never arrived
    begin = time.monotonic()
    client = FineTuneClient(Endpoint(fine_tune_service.url), tmp_path, quick, settle_seconds=2)
    ensure(client)
    assert time.monotonic() - begin < 4
    assert "treated as not created" in caplog.text
    assert len(fine_tune_service.jobs) == 1


def test_a_request_is_on_the_disk_before_it_is_sent(fine_tune_service, quick, tmp_path):
    """And its job's id afterwards, so that a lagging list does not matter to later processes."""
    plain, seen = fine_tune_service._create, []

    def look(request):
        (path,) = tmp_path.glob("*.json")
        seen.append(json.loads(path.read_bytes()))
        return plain(request)

    fine_tune_service._create = look
    fine_tune_service.lag = 1e6
    endpoint = Endpoint(fine_tune_service.url)
    first = ensure(FineTuneClient(endpoint, tmp_path, quick, 60))
    (asked,) = seen
    assert FineTuneIntent.from_dict(asked["intent"]) == INTENT
    assert (asked["attempt"], asked["file_id"], asked["job_id"]) == (0, "file-0", None)
    assert time.time() - 60 < asked["asked_at"] < time.time()
    begin = time.monotonic()
    assert ensure(FineTuneClient(endpoint, tmp_path, quick, 60)).id == first.id
    assert time.monotonic() - begin < 5
    assert len(fine_tune_service.jobs) == 1
    fine_tune_service.jobs[0]["status"] = "failed"
    assert ensure(FineTuneClient(endpoint, tmp_path, quick, 60)).attempt == 1


def test_a_lagging_list_and_a_lost_answer_make_one_job(fine_tune_service, quick, tmp_path):
    fine_tune_service.lag = 0.6
    fine_tune_service.on_create = ["503 after"]
    client = FineTuneClient(Endpoint(fine_tune_service.url), tmp_path, quick, settle_seconds=20)
    assert ensure(client).id == "ftjob-0"
    assert len(fine_tune_service.jobs) == 1


def test_what_was_surely_not_taken_is_not_waited_for(fine_tune_service, quick, tmp_path):
    fine_tune_service.on_create = ["429 before"] * 3
    begin = time.monotonic()
    ensure(FineTuneClient(Endpoint(fine_tune_service.url), tmp_path, quick, settle_seconds=60))
    assert time.monotonic() - begin < 10
    fine_tune_service.on_create = ["refused"]
    other = FineTuneIntent("tiny", "dpo", sha256_of(CONTENT))
    with pytest.raises(FineTuneError):
        ensure(FineTuneClient(Endpoint(fine_tune_service.url), tmp_path, quick, 60), other)
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_between_two_requests_the_pause_that_the_service_asks_for_is_kept():
    asked = []

    async def nothing(record):
        return None

    async def refuse(attempt):
        asked.append(time.monotonic())
        raise TransientError("busy", retry_after=0.1, may_have_acted=False)

    once = ExactlyOnceCreator("service", RetryPolicy(max_attempts=2, first_delay_seconds=0.001), 60)
    order = CreationRequest(INTENT, "fine-tuning", "job", "file", nothing, refuse)
    with pytest.raises(FineTuneError, match="failed 2 times"):
        asyncio.run(once.ensure(order, JobRecordFile(None, "", INTENT)))
    assert len(asked) == 2
    assert asked[1] - asked[0] >= 0.1


GARBAGE = {
    "html": b"<html><body><h1>502 Bad Gateway</h1></body></html>",
    "cut": b'{"object": "list", "data": [{"id": "ftjo',
    "empty": b"",
    "another object": b'{"error": {"message": "upstream timed out"}}',
    "a string": b'"ok"',
    "no list": b'{"object": "list", "data": null}',
    "odd items": b'{"object": "list", "data": ["ftjob-0"]}',
}


@pytest.mark.parametrize(
    "kind", ["GET files", "POST files", "GET jobs", "POST jobs", "GET ftjob-0"]
)
def test_a_success_that_says_nothing_is_transient(fine_tune_service, kind):
    bodies = list(GARBAGE.values())
    fine_tune_service.spoilt[kind] = list(bodies)
    policy = RetryPolicy(max_attempts=20, first_delay_seconds=0.01, max_delay_seconds=0.01)
    client = FineTuneClient(Endpoint(fine_tune_service.url), policy=policy, settle_seconds=0.1)

    async def whole():
        job = await client.ensure_job(INTENT, CONTENT)
        return await client.status(job.id)

    assert asyncio.run(whole()).id == "ftjob-0"
    assert len(fine_tune_service.jobs) == 1
    assert len(fine_tune_service.files) == 1
    seen = len(bodies) - len(fine_tune_service.spoilt[kind])
    assert seen == (1 if kind.startswith("POST") else len(bodies)), "the existing job is found"


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_whatever_creation_answers_its_job_is_found(fine_tune_service, client, content):
    fine_tune_service.spoilt["POST jobs"] = [content]
    assert ensure(client).id == "ftjob-0"
    assert len(fine_tune_service.jobs) == 1


@pytest.mark.parametrize("kind", ["GET files", "GET jobs", "POST jobs"])
def test_the_last_error_says_what_came(fine_tune_service, client, kind):
    fine_tune_service.spoilt[kind] = [GARBAGE["html"] + b"x" * 1000] * 20
    fine_tune_service.lag = 1e6
    with pytest.raises(LanguageModelError, match="502 Bad Gateway") as error:
        ensure(client)
    assert "failed 4 times" in str(error.value)
    assert "x" * 100 in str(error.value)
    assert "x" * 200 not in str(error.value)


def test_an_answer_without_a_status_is_transient(fine_tune_service, client):
    ensure(client)
    fine_tune_service.spoilt["GET ftjob-0"] = [
        b'{"id": "ftjob-0"}',
        b'{"id": "ftjob-0", "status": 1}',
    ]
    assert asyncio.run(client.status("ftjob-0")).status == "pending"
