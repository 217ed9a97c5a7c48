"""The ledger: no request without room, and unknown costs count at their maximum."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from losing_service import LosingService

from ratchet.errors import (
    BudgetExceededError,
    ContentFilterError,
    LanguageModelError,
    MissingKeyError,
    StoreError,
)
from ratchet.language_models import ledger as ledgers
from ratchet.language_models.append_log import AppendLog
from ratchet.language_models.chat import ChatClient
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.ledger import Attempt, Bill, Charge, Ledger
from ratchet.language_models.pricing import FREE, Budget, ModelPrice
from ratchet.language_models.retrying import RetryPolicy
from ratchet.language_models.types import ChatMessage, ChatRequest
from ratchet.language_models.usage import UsageMeter

PRICE = ModelPrice(1000.0, 10000.0)
REQUEST = ChatRequest("tiny", (ChatMessage("user", "Is it right?"),), max_tokens=20)
MOST = PRICE.of_call(*REQUEST.most_tokens)  # 20 tokens each: 0.22


def play_calls(limit, count, most, cost, fails=()):
    """Make calls concurrently; return ledger, number of calls, errors, maximal concurrency."""
    most_at_once, in_flight = 0, 0
    ledger, price = Ledger(Budget(limit)), ModelPrice(cost * 1e6, 0.0)

    async def one(number):
        nonlocal most_at_once, in_flight
        async with ledger.attempt("", price, most) as attempt:
            in_flight += 1
            most_at_once = max(most_at_once, in_flight)
            await asyncio.sleep(0.001 * (1 + number % 3))
            in_flight -= 1
            if number in fails:
                raise OSError("cut off")
            attempt.answered(1, 0)

    async def play():
        return await asyncio.gather(*map(one, range(count)), return_exceptions=True)

    errors = [outcome for outcome in asyncio.run(play()) if outcome is not None]
    return ledger, count - len(errors), errors, most_at_once


@given(
    limit=st.integers(0, 60),
    count=st.integers(1, 40),
    most=st.integers(1, 8),
    share=st.floats(0.1, 1.0),
)
@settings(max_examples=40, deadline=None)
def test_calls_at_once_never_cost_more_than_the_budget_and_use_what_is_left(
    limit, count, most, share
):
    ledger, made, errors, most_at_once = play_calls(limit, count, most, most * share)
    spent = ledger.billed.at_most
    assert spent <= limit + 1e-9
    assert most_at_once * most <= limit
    assert all(isinstance(error, BudgetExceededError) for error in errors)
    if errors:  # no further one would have fitted
        assert limit - spent < most + 1e-9
    else:
        assert made == count


def test_a_waiting_call_starts_when_another_ends(monkeypatch):
    monkeypatch.setattr(ledgers, "_LONGEST_WAIT", 1e6)

    async def play():
        ledger, price = Ledger(Budget(2.0)), ModelPrice(0.1e6, 0.0)

        async def one():
            async with ledger.attempt("", price, 1.5) as attempt:
                await asyncio.sleep(0)
                attempt.answered(1, 0)

        await asyncio.wait_for(asyncio.gather(*(one() for _ in range(5))), 60)
        return ledger.billed

    billed = asyncio.run(play())  # 1.5 leaves no room for another call at the same time
    assert billed.at_most == pytest.approx(0.5)


def test_a_call_whose_answer_was_lost_counts_with_its_most():
    ledger, made, errors, _ = play_calls(limit=3, count=6, most=1, cost=0.25, fails={0, 1})
    assert made == 1 + 0  # 2 lost, then 0.25 and no room for another maximum
    assert ledger.billed == Charge(0.25, 2.25)
    assert ledger.num_open == 2
    assert [type(error) for error in errors][:2] == [OSError, OSError]


def test_a_request_has_no_more_tokens_than_bytes():
    asked = ChatRequest("m", (ChatMessage("user", "素数か? 🙂"),), max_tokens=5)
    assert asked.most_tokens == (len("素数か? 🙂".encode()) + 8, 5)


def test_a_meter_bills_what_has_a_price():
    ledger = Ledger(Budget(0.2))
    assert UsageMeter("s", ledger).bill(None, REQUEST, "r0").ledger is None
    assert UsageMeter("s").bill(PRICE, REQUEST, "r0").ledger is None
    with pytest.raises(BudgetExceededError, match=r"0\.0000 spent and up to 0\.2200 would come"):
        asyncio.run(enter(UsageMeter("s", ledger).bill(PRICE, REQUEST, "r0")))


async def enter(bill):
    async with bill.attempt() as attempt:
        attempt.refused()


@pytest.mark.parametrize(
    ("script", "billed"),
    [
        ([(429, 0), (200, 0)], Charge(0.081, 0.081)),
        ([(500, 0), (200, 0)], Charge(0.081, 0.081 + MOST)),
        ([(408, 0), (0, 0), (200, 0)], Charge(0.081, 0.081 + 2 * MOST)),
        ([(200, 0.4), (200, 0)], Charge(0.081, 0.081 + MOST)),
        ([(400, 0)], Charge(0.0, 0.0)),
        ([(401, 0)], Charge(0.0, 0.0)),
    ],
)
def test_only_what_a_service_has_refused_is_free(service, quick, answer, chat, script, billed):
    service.script = [
        answer(status, chat() if status == 200 else {}, delay=delay, cut=not status)
        for status, delay in script
    ]
    client = ChatClient(Endpoint(service.url, timeout_seconds=0.2), quick)
    assert bill_of(client, fails=script[-1][0] >= 400) == billed


def test_withheld_answers_are_paid_and_what_was_never_sent_is_not(service, quick, answer, chat):
    service.script = [answer(200, chat("", "content_filter"))]
    assert bill_of(ChatClient(Endpoint(service.url), quick), fails=True) == Charge(0.081, 0.081)
    nowhere = ChatClient(Endpoint("http://127.0.0.1:9/v1"), quick)
    assert bill_of(nowhere, fails=True) == Charge(0.0, 0.0)
    no_key = ChatClient(Endpoint(service.url, "NO_SUCH_KEY"), quick)
    assert bill_of(no_key, fails=True) == Charge(0.0, 0.0)


def bill_of(client, *, fails):
    ledger = Ledger()
    call = client.complete(REQUEST, UsageMeter("s", ledger).bill(PRICE, REQUEST, "r0"))
    if fails:
        with pytest.raises((LanguageModelError, ContentFilterError, MissingKeyError)):
            asyncio.run(call)
    else:
        asyncio.run(call)
    return Charge(round(ledger.billed.at_least, 9), round(ledger.billed.at_most, 9))


def ask_many(service, path, budget, count, workers, names="r"):
    """Call until the budget is spent, or all requests are completed."""
    client = ChatClient(Endpoint(service.url, timeout_seconds=0.1), RetryPolicy(6, 0.001, 0.002))

    async def play():
        slots = asyncio.Semaphore(workers)
        with CallJournal(path / f"{names}.jsonl") as journal:

            async def one(number):
                name = f"{names}{number}"
                bill = UsageMeter("s", ledger).bill(PRICE, REQUEST, name)
                async with slots:
                    await journal.call(name, REQUEST, lambda: client.complete(REQUEST, bill))

            return await asyncio.gather(*map(one, range(count)), return_exceptions=True)

    ledger = Ledger(Budget(budget), path / "ledger.jsonl")
    outcomes = asyncio.run(play())
    ledger.close()
    return ledger, sum(outcome is None for outcome in outcomes)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("share", [0.0, pytest.param(0.3, marks=pytest.mark.slow), 0.6])
@pytest.mark.parametrize("workers", [1, pytest.param(8, marks=pytest.mark.slow), 64])
def test_a_service_never_bills_more_than_the_budget(tmp_path, share, workers):
    service = LosingService(share, seed=workers)
    answered = 0
    for budget in (0.5, 3.0, 7.0):  # each continues with the ledger of the previous one
        ledger, answered = ask_many(service, tmp_path, budget, 100, workers)
        billed = ledger.billed
        assert billed.at_least - 1e-9 <= service.billed <= billed.at_most + 1e-9 <= budget + 2e-9
        assert budget - billed.at_most < MOST, "the rest has been used"
    service.close()
    assert 0 < answered < 100
    if share == 0:
        assert billed.at_least == pytest.approx(billed.at_most)


def test_stages_beside_each_other_and_a_job_share_what_is_left(tmp_path):
    service = LosingService(0.3)
    ledger = Ledger(Budget(6.0), tmp_path / "ledger.jsonl")
    ledger.reserve("job", 3.0)
    work = [
        threading.Thread(target=ask_many, args=(service, tmp_path, 6.0, 40, 8, name))
        for name in ("sample", "test", "other")  # each opens the file, as another process does
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    with pytest.raises(BudgetExceededError):
        ledger.reserve("another job", 1.0)
    service.close()
    assert 1.0 < service.billed <= 3.0


def test_a_killed_process_leaves_what_it_had_begun(tmp_path, caplog):
    path = tmp_path / "ledger.jsonl"
    script = """
import asyncio, os, signal, sys
from pathlib import Path
from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import ModelPrice
async def main():
    ledger = Ledger(None, Path(sys.argv[1]))
    for number in range(3):
        async with ledger.attempt("a", ModelPrice(1e6, 0), 5.0) as attempt:
            if number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            attempt.answered(number + 1, 0)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert Ledger(None, path).billed == Charge(3.0, 8.0)
    path.write_bytes(path.read_bytes()[:-20])  # its last line is torn: no request was sent then
    again = Ledger(None, path)
    assert again.billed == Charge(3.0, 3.0)
    assert "ledger.jsonl: dropped a torn line of" in caplog.text
    again.settle("job", Charge(1.0, 1.0))
    assert Ledger(None, path).billed == Charge(4.0, 4.0)


def test_a_closed_ledger_releases_its_file_until_the_next_charge(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(None, path)
    for number in range(2):
        ledger.settle(f"job {number}", Charge(1.0, 1.0))
        assert str(path) in [each.path for each in psutil.Process().open_files()]
        ledger.close()
        assert str(path) not in [each.path for each in psutil.Process().open_files()]
    assert Ledger(None, path).billed == Charge(2.0, 2.0)


def test_a_full_disk_lets_nothing_be_asked_for_that_is_not_written_down(tmp_path, monkeypatch):
    ledger = Ledger(None, tmp_path / "ledger.jsonl")
    asyncio.run(enter(Bill(ledger, PRICE, MOST, "r0")))

    def full(lines, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(AppendLog, "_write", full)
        with pytest.raises(StoreError, match="so it is not incurred"):
            asyncio.run(enter(Bill(ledger, PRICE, MOST, "r1")))
        ledger.settle("job", Charge(1.0, 1.0))  # is over already: buffered in memory
    assert ledger.billed == Charge(1.0, 1.0)
    asyncio.run(enter(Bill(ledger, PRICE, MOST, "r2")))
    assert Ledger(None, ledger.path).billed == Charge(1.0, 1.0)
    assert all(
        json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().split("\n")[:-1]
    )


def test_an_answer_counts_although_the_disk_is_full_by_then(tmp_path, monkeypatch):
    ledger = Ledger(None, tmp_path / "ledger.jsonl")

    def full(lines, content):
        raise OSError(28, "No space left on device")

    async def ask():
        async with ledger.attempt("r0", ModelPrice(0.0, 1e6), 3.0) as attempt:
            monkeypatch.setattr(AppendLog, "_write", full)
            attempt.answered(0, 2)

    asyncio.run(ask())
    assert ledger.billed == Charge(2.0, 2.0)


def test_a_later_charge_replaces_an_earlier_one_of_the_same_name():
    ledger = Ledger()
    ledger.settle("job", Charge(1.0, 2.0))
    ledger.settle("job", Charge(1.5, 1.5))
    assert ledger.billed == Charge(1.5, 1.5)
    assert ledger.num_open == 0
    ledger.reserve("job", 3.0)
    assert ledger.billed == Charge(1.5, 3.0), "past costs remain billed"
    assert ledger.num_open == 1


@pytest.mark.parametrize("counts", [(1, 0), (0, 1)])
def test_an_attempt_is_settled_by_either_count_and_open_without_any(counts):
    attempt = Attempt(ModelPrice(1e6, 1e6), 5.0)
    attempt.answered(0, 0)
    assert attempt.charge == Charge(0.0, 5.0)
    attempt.answered(*counts)
    assert attempt.charge == Charge(1.0, 1.0)


def test_an_attempt_waits_where_another_process_has_taken_the_room(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger, other = (Ledger(Budget(1.0), path) for _ in range(2))

    async def play():
        second = ledger.attempt("second", FREE, 0.3)
        async with ledger.attempt("first", FREE, 0.4) as first:
            other.reserve("job", 0.5)  # which this process has not read
            begun = asyncio.ensure_future(second.__aenter__())
            await asyncio.sleep(0.01)
            assert not begun.done()
            first.refused()
        await begun
        return ledger.billed

    assert asyncio.run(play()) == Charge(0.0, 0.8)


def test_costs_before_the_ledger_are_entered_only_into_an_empty_one():
    empty, used = Ledger(), Ledger()
    used.settle("job", Charge(1.0, 1.0))
    for ledger in (empty, used):
        ledger.record_earlier_spending(5.0)
        ledger.record_earlier_spending(5.0)
    assert (empty.billed, used.billed) == (Charge(5.0, 5.0), Charge(1.0, 1.0))
