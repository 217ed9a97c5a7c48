"""Do many things at once, a bounded number at a time; one that fails loses no other."""

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
    """What became of one item: a result or an error; neither if it was not begun."""

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
    """Run a coroutine for each item, ``workers`` of them at the same time; outcomes in their order.

    A failed item stops no other. Only when everything has failed so far, ``workers`` items or more,
    are no new ones begun: they would fail too. ``finished`` is called after each item that did not
    fail.

    Raises
    ------
    BudgetExceededError
        At once: everything that runs is cancelled, nothing more is begun.
    """
    outcomes = [Outcome[_Item, _Result](item) for item in items]
    queue = iter(range(len(items)))
    counts = {"done": 0, "failed": 0}

    async def work(places: Iterator[int]) -> None:
        for place in places:
            if counts["failed"] >= workers and not counts["done"]:
                return
            item = items[place]
            try:
                outcomes[place] = Outcome(item, result=await run(item))
            except BudgetExceededError:
                raise
            except Exception as error:  # noqa: BLE001 -- kept, and raised when all have ended
                outcomes[place] = Outcome(item, error=error)
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
    """Let the garbage collector look at new objects only.

    Going through everything that torch has imported holds all calls up for a third of a second.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
