"""Driver of an arm's stages: executes their sequence, each stage in a thread or as the caller does.

A flow passes a function that executes a stage as a Prefect task
(:mod:`tasks.stages.prefect_tasks`); :func:`run_stages` needs no Prefect.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from ratchet.errors import RatchetError
from tasks.stages.background import Interruptible
from tasks.stages.calls import ParallelChains, StageCall, StageOutcome, Step
from tasks.stages.decorator import Stage, make_stage, stage_log_context
from tasks.stages.failures import could_succeed
from tasks.stages.families import stage_functions
from tasks.stages.sequence import StoredStageLayout
from tasks.stages.session import BaseSession

logger = logging.getLogger(__name__)

Execute: TypeAlias = Callable[[Stage[Any], StageCall, Any, bool], Awaitable[StageOutcome]]
"""Executes a stage: takes its function, its call, the session, and whether to recompute it."""
_Item = TypeVar("_Item")


def run_stages(session: BaseSession) -> list[StageOutcome]:
    """Execute all stages of an arm, without Prefect; return their outcomes as they finished.

    Stored stages are cache hits. Raises the error of the first stage that failed.
    """
    outcomes: list[StageOutcome] = []
    driver = StageDriver(session, execute_stage, outcomes.append)
    layout = StoredStageLayout(session.store, session.settings)
    asyncio.run(driver.run(session.keys.stages(layout)))
    return outcomes


class StageDriver:
    """Executes steps of an arm's sequence in order, and parallel chains concurrently.

    Parameters
    ----------
    execute
        Executes a stage, such as :func:`execute_stage`.
    finished
        Called with the outcome of each stage.
    recomputed
        If given, the keys of the stages that the run has recomputed so far; all others are
        recomputed and added.
    """

    def __init__(
        self,
        session: BaseSession,
        execute: Execute,
        finished: Callable[[StageOutcome], object],
        recomputed: set[str] | None = None,
    ) -> None:
        self.session = session
        self._stages = stage_functions(session.keys)
        self._execute, self._finished = execute, finished
        self._recomputed = recomputed
        session.fresh = recomputed is not None
        session.is_driven = True

    async def run(self, steps: Iterable[Step]) -> None:
        """Execute steps in order; their keys are computed in a thread."""
        exclude_imports_from_collection()
        async for step in in_thread(iter(steps)):
            if isinstance(step, StageCall):
                await self._run_stage(step)
            else:
                await self._run_chains(step)

    async def _run_stage(self, call: StageCall) -> None:
        recomputed = self._recomputed
        is_due = recomputed is not None and call.key not in recomputed
        force = is_due and call.pinned_key is None
        outcome = await self._execute(self._stages[call.kind.name], call, self.session, force)
        if recomputed is not None:
            recomputed.add(call.key)
        self._finished(outcome)

    async def _run_chains(self, chains: ParallelChains) -> None:
        firsts = await asyncio.to_thread(lambda: [next(chain) for chain in chains])
        with self.session.running(firsts) as futures:
            await together(
                [
                    self._run_chain(first, chain, futures[first.key])
                    for first, chain in zip(firsts, chains, strict=True)
                ]
            )

    async def _run_chain(
        self, first: StageCall, others: Iterator[StageCall], future: Future[None]
    ) -> None:
        """Execute a chain; resolve or cancel the future that concurrent stages may wait for."""
        try:
            await self._run_stage(first)
        except BaseException:
            future.cancel()
            raise
        future.set_result(None)
        await self.run(others)


@functools.cache
def exclude_imports_from_collection() -> None:
    """Exclude all objects so far from garbage collection: mostly those of imported libraries.

    Collecting these about a million objects again and again took 7 % of a small model's training.
    """
    gc.collect()
    gc.freeze()


async def execute_stage(
    stage: Stage[Any], call: StageCall, session: BaseSession, force: bool
) -> StageOutcome:
    """Execute a stage, up to ``settings.retries`` times more if another attempt could succeed."""
    for attempt in range(1, session.settings.retries + 1):
        try:
            return await attempt_stage(stage, call, session, force, attempt)
        except Exception as error:
            if not could_succeed(error):
                raise
        await asyncio.sleep(session.settings.retry_delay_seconds)
    return await attempt_stage(stage, call, session, force, session.settings.retries + 1)


async def attempt_stage(
    stage: Stage[Any], call: StageCall, session: BaseSession, force: bool, attempt: int
) -> StageOutcome:
    """Return the stored stage or compute it, in a thread of the session or where it decides.

    Cancellation interrupts a thread that computes. A failure is logged, with whether the caller is
    expected to retry, and an unexpected one with its traceback.
    """
    with stage_log_context(call, session):
        try:
            return await _attempt(stage, call, session, force)
        except Exception as error:
            label, reason = call.label, f"{type(error).__name__}: {error}"
            left = session.settings.retries - attempt + 1
            if not could_succeed(error):
                left = 0
                trace = None if isinstance(error, RatchetError) else error
                logger.info("%s failed and would fail again: %s", label, reason, exc_info=trace)
            else:
                end = "retrying" if left > 0 else "no retries left"
                logger.warning("%s failed at attempt %d, %s: %s", label, attempt, end, reason)
            session.observer.failed(call, error, again=left > 0)
            raise


async def _attempt(
    stage: Stage[Any], call: StageCall, session: BaseSession, force: bool
) -> StageOutcome:
    make_remotely = session.make_elsewhere
    if make_remotely is not None and (
        force or await asyncio.to_thread(session.store.find, call.key) is None
    ):
        return await make_remotely(call, force)
    thread = Interruptible(functools.partial(make_stage, stage, call, session, force=force))
    job = functools.partial(contextvars.copy_context().run, thread.run)
    executor = session.executor if stage.alone else session.parallel_executor
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, job)
    except asyncio.CancelledError:
        if stage.alone:  # the others wait for responses that are billed
            thread.interrupt()
        raise


async def in_thread(items: Iterator[_Item]) -> AsyncIterator[_Item]:
    """Iterate in a thread, since keys take time to compute."""
    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item  # type: ignore[misc]


async def together(work: list[Coroutine[Any, Any, object]]) -> None:
    """Wait for all even if one fails, since started work may be billed; raise the first error."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
