"""Bounded concurrency: in order, and one failure affects no other item."""

from __future__ import annotations

import asyncio

import pytest

from ratchet.errors import BudgetExceededError, RolloutError
from ratchet.language_models.concurrency import run_bounded
from trainers.text.plans import PlannedRollout
from trainers.text.sampling import play_rollouts


def test_results_are_in_the_order_of_the_items_whichever_ends_first():
    async def work(item: int) -> int:
        await asyncio.sleep(0.002 * (5 - item))
        return item * 10

    outcomes = asyncio.run(run_bounded(range(5), work, workers=3))
    assert [outcome.result for outcome in outcomes] == [0, 10, 20, 30, 40]


def test_a_failure_is_kept_beside_the_results_of_the_others():
    finished = []

    async def work(item: int) -> int:
        if item == 1:
            raise ValueError("one")
        return item

    outcomes = asyncio.run(
        run_bounded(range(4), work, workers=2, finished=lambda: finished.append(1))
    )
    assert [outcome.result for outcome in outcomes] == [0, None, 2, 3]
    assert isinstance(outcomes[1].error, ValueError)
    assert len(finished) == 3


def test_where_everything_fails_no_more_is_begun():
    begun = []

    async def work(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(0)
        raise ValueError("always")

    outcomes = asyncio.run(run_bounded(range(100), work, workers=4))
    assert len(begun) <= 8
    assert outcomes[-1].error is None


def test_a_budget_that_is_spent_stops_everything_at_once():
    ended = []

    async def work(item: int) -> None:
        if item == 2:
            raise BudgetExceededError("spent")
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            ended.append(item)
            raise

    with pytest.raises(BudgetExceededError):
        asyncio.run(run_bounded(range(10), work, workers=3))
    assert sorted(ended) == [0, 1]


def test_the_error_says_how_many_failed_and_what_the_first_was():
    plan = [PlannedRollout(place, 7 * place, 0) for place in range(6)]

    async def play(planned: PlannedRollout):
        if planned.rollout_id in (2, 4):
            raise ValueError("agent 'prover', round 1: refused.")
        return planned

    with pytest.raises(
        RolloutError, match=r"2 of 6 rollouts failed\. The first: rollout 2 on datapoint 14: Value"
    ) as caught:
        asyncio.run(play_rollouts(plan, play, workers=2, show_progress=False))
    assert isinstance(caught.value.__cause__, ValueError)
