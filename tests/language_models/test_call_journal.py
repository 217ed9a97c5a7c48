"""The journal: completed calls are never repeated, at any byte where the writer died."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ratchet.errors import StoreError
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.types import ChatMessage, ChatRequest, Completion


def request(text="Hi"):
    return ChatRequest("tiny", (ChatMessage("user", text),))


def completion(text):
    return Completion(text, "stop", 3, 2, "tiny")


class Model:
    """Counts its calls and answers each differently."""

    def __init__(self, delay=0.0):
        self.calls = 0
        self.delay = delay

    async def __call__(self):
        self.calls += 1
        number = self.calls
        await asyncio.sleep(self.delay)
        return completion(f"answer {number} — ä\n")


def call(journal, call_id, model, asked=None):
    return asyncio.run(journal.call(call_id, asked or request(), model))


def test_a_finished_call_is_replayed_by_a_later_journal(tmp_path):
    model = Model()
    with CallJournal(tmp_path / "deep" / "calls.jsonl") as journal:
        first = call(journal, "r0/t0/prover/a0", model)
        assert call(journal, "r0/t0/prover/a0", model) == first
        assert (journal.calls_made, journal.calls_replayed) == (1, 1)
    with CallJournal(tmp_path / "deep" / "calls.jsonl") as journal:
        assert call(journal, "r0/t0/prover/a0", model) == first
        assert call(journal, "r0/t0/prover/a1", model) != first
        assert (journal.calls_made, journal.calls_replayed) == (1, 1)
    assert model.calls == 2


def test_a_changed_request_is_asked_anew_and_the_new_answer_counts(tmp_path):
    model = Model()
    with CallJournal(tmp_path / "calls.jsonl") as journal:
        call(journal, "r0", model)
        changed = call(journal, "r0", model, request("Hello"))
        assert changed.text.startswith("answer 2")
    with CallJournal(tmp_path / "calls.jsonl") as journal:
        assert call(journal, "r0", model, request("Hello")) == changed
    assert model.calls == 2


def test_torn_at_any_byte_whole_lines_are_kept_and_the_next_begins_anew(tmp_path):
    path = tmp_path / "calls.jsonl"
    with CallJournal(path) as journal:
        for number in range(2):
            call(journal, f"r{number}", Model())
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for size in range(ends[0] - 40, len(content) + 1):
        path.write_bytes(content[:size])
        model = Model()
        with CallJournal(path) as journal:
            whole = sum(size >= end - 1 for end in ends)  # complete without its newline, too
            assert len(journal) == whole
            call(journal, "r2", model)
            for number in range(whole):
                call(journal, f"r{number}", model)
        assert model.calls == 1
        with CallJournal(path) as journal:
            assert len(journal) == whole + 1


def test_zeros_of_a_lost_block_are_no_call(tmp_path):
    path = tmp_path / "calls.jsonl"
    with CallJournal(path) as journal:
        call(journal, "r0", Model())
    with path.open("ab") as file:
        file.write(b"\0" * 100)
    with CallJournal(path) as journal:
        assert len(journal) == 1
        call(journal, "r1", Model())
    with CallJournal(path) as journal:
        assert len(journal) == 2


def test_concurrent_calls_are_all_recorded_and_twins_wait_for_each_other(tmp_path):
    model = Model(delay=0.01)

    async def many():
        with CallJournal(tmp_path / "calls.jsonl") as journal:
            ids = [f"r{number % 50}" for number in range(100)]
            return await asyncio.gather(*(journal.call(i, request(), model) for i in ids))

    answers = asyncio.run(many())
    assert model.calls == 50
    assert answers[:50] == answers[50:]
    lines = (tmp_path / "calls.jsonl").read_text().split("\n")[:-1]
    assert {json.loads(line)["id"] for line in lines} == {f"r{n}" for n in range(50)}


def test_a_failed_call_is_not_recorded_and_frees_its_id(tmp_path):
    async def fail():
        raise RuntimeError("no")

    with CallJournal(tmp_path / "calls.jsonl") as journal:
        with pytest.raises(RuntimeError):
            call(journal, "r0", fail)
        assert len(journal) == 0
        call(journal, "r0", Model())
        assert len(journal) == 1


_FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from ratchet.errors import StoreError
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.types import ChatRequest, Completion

path, room, asked = Path(sys.argv[1]), int(sys.argv[2]), []
request, hard = ChatRequest("tiny", ()), resource.getrlimit(resource.RLIMIT_FSIZE)[1]

def allow(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

async def ask(number):
    async def make():
        asked.append(number)
        await asyncio.sleep(0.01)
        return Completion(str(number) * 50, "stop", 1, 1, "tiny")
    try:
        return (await journal.call(f"r{number}", request, make)).text
    except StoreError as error:
        return str(error)

async def main():
    await ask(0)
    allow(path.stat().st_size + room)
    print(await asyncio.gather(*map(ask, range(1, 4))))  # in flight as the disk gets full
    print(await ask(4), asked)
    if len(sys.argv) > 3:
        return
    allow(hard)
    print(await ask(5), asked)

with CallJournal(path) as journal:
    asyncio.run(main())
"""


@pytest.mark.parametrize("room", [0, 1, 60, 200, 300])
@pytest.mark.parametrize("for_ever", [False, True])
def test_a_full_disk_tears_no_line_and_what_was_answered_is_written_later(tmp_path, room, for_ever):
    """The system truncates the write after ``room`` bytes, and refuses the next."""
    path = tmp_path / "calls.jsonl"
    command = [sys.executable, "-c", _FULL_DISK, str(path), str(room)]
    done = subprocess.run(
        [*command, *(["x"] if for_ever else [])], capture_output=True, text=True, check=True
    )
    delivered, refused, *rest = done.stdout.splitlines()
    assert delivered == str([str(number) * 50 for number in (1, 2, 3)])
    assert "completions cannot be recorded" in refused
    assert refused.endswith("[0, 1, 2, 3]"), "no call is billed whose completion can't be stored"
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    ids = [json.loads(line)["id"] for line in lines]
    if for_ever:
        assert ids == [f"r{number}" for number in range(1 + room // (len(lines[0]) + 1))]
        assert "lines are lost" in done.stderr
    else:
        assert rest == [f"{'5' * 50} [0, 1, 2, 3, 5]"]
        assert sorted(ids) == ["r0", "r1", "r2", "r3", "r5"]
    model = Model()
    with CallJournal(path) as journal:
        for number in range(6):
            asyncio.run(journal.call(f"r{number}", ChatRequest("tiny", ()), model))
        assert model.calls == 6 - len(ids)
    with CallJournal(path) as journal:
        assert len(journal) == 6


def test_a_disk_without_any_room_is_an_error_before_the_next_call():
    model = Model()
    journal = CallJournal("/dev/full")
    assert call(journal, "r0", model).text.startswith("answer 1")
    with pytest.raises(StoreError, match="No space left"):
        call(journal, "r1", model)
    assert call(journal, "r0", model).text.startswith("answer 1")
    assert model.calls == 1


_WRITER = """
import asyncio, sys
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.types import ChatMessage, ChatRequest, Completion

async def main():
    journal = CallJournal(sys.argv[1])
    async def make():
        return Completion("x" * 20_000, "stop", 1, 1, "tiny")
    for number in range(1_000_000):
        await journal.call(f"r{number}", ChatRequest("tiny", ()), make)
        if number == 10:
            sys.stdout.write("going\\n"); sys.stdout.flush()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_killed_writer_loses_no_finished_call(tmp_path):
    path = tmp_path / "calls.jsonl"
    for round in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05 * round)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        *complete, _ = path.read_bytes().split(b"\n")  # a line torn by an earlier kill is no call
        ids = [json.loads(line)["id"] for line in complete if line.endswith(b"}}")]
        assert ids == [f"r{number}" for number in range(len(ids))], "none is lost, none made twice"
        with CallJournal(path) as journal:
            assert len(journal) in (len(ids), len(ids) + 1)
            assert len(journal) > 10
