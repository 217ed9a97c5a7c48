"""A request whose response was lost is searched for as long as the service may take to list it."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import pytest

from ratchet.language_models.exactly_once import CreationRequest, ExactlyOnceCreator
from ratchet.language_models.job_records import JobRecord, JobRecordFile
from ratchet.language_models.retrying import RetryPolicy, TransientError, retry_after_seconds

REAL_TIME = time.time
LISTED_AFTER = 0.6


@dataclass(frozen=True)
class Job:
    id: str
    attempt: int
    is_lost: bool = False


class Intent:
    digest = "0" * 16

    def to_dict(self):
        return {}

    @classmethod
    def from_dict(cls, data):
        return cls()


@pytest.mark.parametrize("jump", [0, 3600, -3600])
def test_a_jump_of_the_clock_makes_no_second_job(jump, monkeypatch, tmp_path):
    """The response is lost, and the clock is set while the request is sent."""
    made = []

    async def find(record):
        listed = [job for job, at in made if time.monotonic() - at > LISTED_AFTER]
        return listed[-1] if listed else None

    async def make(attempt):
        made.append((Job(f"job-{len(made)}", attempt), time.monotonic()))
        monkeypatch.setattr(time, "time", lambda: REAL_TIME() + jump)
        raise TransientError("connection reset", may_have_acted=True)

    policy = RetryPolicy(max_attempts=3, first_delay_seconds=0.05)
    creator = ExactlyOnceCreator("service", policy, settle_seconds=10.0)
    order = CreationRequest(Intent(), "fine-tuning", "job", "file", find, make)
    records = JobRecordFile(tmp_path, "http://service", Intent())
    assert asyncio.run(creator.ensure(order, records)).id == "job-0"
    assert len(made) == 1
    assert records.read().job_id == "job-0"


def test_the_wait_continues_in_another_process_and_starts_again_after_a_boot(tmp_path):
    records = JobRecordFile(tmp_path, "http://service", Intent())
    records.write(JobRecord.now(Intent(), 0, "file"))
    time.sleep(0.05)
    assert 19 < records.read().open_seconds(20.0) <= 19.95
    (path,) = tmp_path.iterdir()
    content = json.loads(path.read_text())
    other = {"boot": "another", "asked_at": time.time() - 3600}
    earlier_release = {"intent": {}, "attempt": 0, "file_id": "file", "asked_at": 1.0}
    for stored in (content | other, earlier_release):
        path.write_text(json.dumps(stored))
        assert records.read().open_seconds(20.0) == 20.0


def test_a_date_to_wait_for_is_relative_to_the_services_time():
    headers = {
        "retry-after": "Wed, 21 Oct 2015 07:28:30 GMT",
        "date": "Wed, 21 Oct 2015 07:28:00 GMT",
    }
    assert retry_after_seconds(headers) == 30.0
