"""Concurrent execution of planned rollouts: journal, usage meter, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from ratchet.errors import RolloutError
from ratchet.language_models.concurrency import Outcome, run_bounded
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.usage import UsageMeter
from trainers.progress import IterationContext
from trainers.text.plans import PlannedRollout

T = TypeVar("T")


@dataclass(frozen=True)
class Calls:
    """Journal and usage meter of one stage's calls.

    ``slots`` bounds the number of concurrent steps if one rollout executes several.
    """

    journal: CallJournal
    usage: UsageMeter
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


async def play_rollouts(
    plan: Sequence[PlannedRollout],
    play: Callable[[PlannedRollout], Awaitable[T]],
    *,
    workers: int,
    show_progress: bool,
) -> list[T]:
    """Execute all planned rollouts, ``workers`` concurrently; return them in the plan's order.

    Raises RolloutError after all have ended if any failed. The first error is its cause.
    """
    progress = IterationContext(len(plan)) if show_progress else nullcontext()
    with progress as context:
        outcomes = await run_bounded(
            plan,
            play,
            workers=workers,
            finished=context.step if context is not None else lambda: None,
        )
    _raise_failures(outcomes)
    return [outcome.result for outcome in outcomes if outcome.result is not None]


def _raise_failures(outcomes: Sequence[Outcome[PlannedRollout, T]]) -> None:
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if not failed:
        return
    first = failed[0]
    not_begun = sum(o.error is None and o.result is None for o in outcomes)
    rest = f" {not_begun} were not started, since all before them had failed." if not_begun else ""
    raise RolloutError(
        f"{len(failed)} of {len(outcomes)} rollouts failed.{rest} The first: rollout"
        f" {first.item.rollout_id} on datapoint {first.item.datapoint_id}:"
        f" {type(first.error).__name__}: {first.error} Completed calls are cached: run the"
        " same command again to resume."
    ) from first.error
