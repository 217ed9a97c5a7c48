"""Bounded concurrency: run a coroutine per item; one failure loses no other result."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from ratchet.errors import BudgetExceededError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Outcome(Generic[_Item, _Result]):
    """The outcome of one item: a result or an error; neither if it was not started."""

    item: _Item
    result: _Result | None = None
    error: Exception | None = None


async def run_bounded(
    items: Sequence[_Item],
    run: Callable[[_Item], Awaitable[_Result]],
    *,
    workers: int,
    finished: Callable[[], None] = lambda: None,
) -> list[Outcome[_Item, _Result]]:
    """Run a coroutine for each item, ``workers`` concurrently; return outcomes in item order.

    A failed item stops no other. If every item has failed so far, and at least ``workers`` of them,
    no new items are started: they would fail too. ``finished`` is called after each item that did
    not fail.

    BudgetExceededError cancels the running items and is raised immediately.
    """
    outcomes = [Outcome[_Item, _Result](item) for item in items]
    queue = iter(range(len(items)))
    counts = {"done": 0, "failed": 0}

    async def work(indices: Iterator[int]) -> None:
        for index in indices:
            if counts["failed"] >= workers and not counts["done"]:
                return
            item = items[index]
            try:
                outcomes[index] = Outcome(item, result=await run(item))
            except BudgetExceededError:
                raise
            except Exception as error:  # noqa: BLE001 -- kept, and raised when all have ended
                outcomes[index] = Outcome(item, error=error)
                counts["failed"] += 1
            else:
                counts["done"] += 1
                finished()

    tasks = [asyncio.create_task(work(queue)) for _ in range(min(workers, len(items)))]
    try:
        with _old_objects_left_alone():
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return outcomes


@contextmanager
def _old_objects_left_alone() -> Iterator[None]:
    """Restrict the garbage collector to new objects.

    A full collection over the objects of torch blocks all calls for a third of a second.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
