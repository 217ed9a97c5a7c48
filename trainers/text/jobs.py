"""Await the fine-tune jobs of all shared model groups concurrently, and switch models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ratchet.errors import FineTuneError
from trainers.progress import describe, has_reporter

if TYPE_CHECKING:
    from ratchet.language_models.fine_tune_jobs import FineTuneJob
    from ratchet.language_models.usage import UsageMeter
    from ratchet.scenarios.pure_text.agents.shared_model_group import PureTextSharedModelGroup
    from trainers.text.state import State

_LOGGER = logging.getLogger(__name__)
_NO_JOB = ("frozen", "insufficient_data")

JobAwaiting: TypeAlias = Callable[[], Awaitable["FineTuneJob | None"]]
AroundJob: TypeAlias = Callable[[str, JobAwaiting], Awaitable[object]]
"""Custom wrapper that awaits a group's job: takes the group's name and the awaiting function."""


async def await_jobs(
    groups: Mapping[str, PureTextSharedModelGroup],
    usage: UsageMeter,
    around: AroundJob | None = None,
) -> None:
    """Wait until all jobs have ended, then switch models; none are switched if a job failed.

    ``usage`` records the jobs' usage. ``around`` awaits each group's job; all run concurrently.
    Raises FineTuneError if a job failed or was cancelled, with the group and the service's
    reason.
    """
    awaited = {name: group for name, group in groups.items() if group.state.fine_tune_job_id}
    queue = _Queue(awaited)
    around = around or _wait
    await asyncio.gather(
        *(
            around(name, partial(group.await_job, queue.listener(name)))
            for name, group in awaited.items()
        )
    )
    statuses = {name: group.get_fine_tune_job_status() for name, group in groups.items()}
    failed = {
        name: status for name, status in statuses.items() if status not in ("succeeded", *_NO_JOB)
    }
    if failed:
        reasons = "; ".join(
            f"group {name!r}: {status}: {groups[name].get_fine_tune_job_error_repr()}"
            for name, status in failed.items()
        )
        raise FineTuneError(f"fine-tune jobs failed: {reasons}. Re-run the command to retry.")
    await asyncio.gather(*(group.activate_next_model() for group in groups.values()))
    for name, group in groups.items():
        if statuses[name] in _NO_JOB:
            _LOGGER.info("group %s keeps its model: %s", name, statuses[name])
        group.record_usage(usage)
        group.switch_to_next_model()


async def _wait(_: str, waiting: JobAwaiting) -> None:
    await waiting()


class _Queue:
    """The awaited jobs; reports the one that is currently awaited."""

    def __init__(self, names: Iterable[str]) -> None:
        self._jobs: dict[str, FineTuneJob | None] = dict.fromkeys(names)

    def listener(self, name: str) -> Callable[[FineTuneJob], None] | None:
        """Return the listener of a group's job, if a progress reporter is set."""
        return partial(self.update, name) if has_reporter() else None

    def update(self, name: str, job: FineTuneJob) -> None:
        """Record the status of a group's job, and report progress."""
        self._jobs[name] = job
        jobs = [(name, job) for name, job in self._jobs.items() if job is None or not job.is_final]
        if jobs:
            running = [(name, job) for name, job in jobs if job and job.status == "running"]
            name, current = (running or jobs)[0]
            number = list(self._jobs).index(name) + 1
            describe(
                f"Waiting for fine-tuning job {number} of {len(self._jobs)},"
                f" {name} ({current.standing if current else 'queued'})"
            )


def no_job_stats(groups: Mapping[str, PureTextSharedModelGroup]) -> dict[str, float]:
    """Return 0 or 1 for each group and reason for having no job."""
    stats: dict[str, float] = {}
    for name, group in groups.items():
        state = group.state
        group_reason = state.no_job_reason or ("frozen" if state.fine_tune_job_id is None else None)
        stats |= {f"{name}.{reason}": float(group_reason == reason) for reason in _NO_JOB}
    return stats


def without_jobs(state: State) -> State:
    """Return the state before its jobs were created.

    Creating them again reuses those that succeeded, and restarts those that failed.
    """
    groups = {
        name: replace(group, fine_tune_job_id=None, fine_tune_intent=None, no_job_reason=None)
        for name, group in state.shared_model_groups.items()
    }
    return replace(state, train_loop_stage="create_fine_tune_jobs", shared_model_groups=groups)
