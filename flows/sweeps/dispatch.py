"""Run members of a sweep with a runner; a member whose worker dies is resumed by another one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from flows.runners.base import Answer, Runner
from flows.runs.pause_and_cancel import cancel_flow_run_of
from flows.sweeps.members import SweepMember
from ratchet.errors import WorkerDiedError
from ratchet.tracking.run_folder import RunFolder

logger = logging.getLogger(__name__)

MemberDone = Callable[[SweepMember, dict[str, Any]], None]


async def run_concurrently(
    members: Iterable[SweepMember], done: MemberDone, runner: Runner
) -> None:
    """Run members in order, with as many concurrent ones as the runner has slots.

    ``done`` is called with each finished member and its response: ``result``, an
    :class:`flows.runs.result.ExperimentResult` as plain data, or ``error``. The next member is
    requested only after that, so that its choice can depend on the finished ones.
    """
    waiting = iter(members)

    async def run_waiting() -> None:
        for member in waiting:
            done(member, await _run(member, runner))

    workers = [asyncio.ensure_future(run_waiting()) for _ in range(runner.slots)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _run(member: SweepMember, runner: Runner) -> dict[str, Any]:
    settings = member.experiment.settings
    path = member.experiment.run_path
    attempts = _run_member.with_options(
        task_run_name=lambda: member.label,  # not a str, which Prefect would format
        retries=settings.retries,
        retry_delay_seconds=settings.retry_delay_seconds,
        retry_condition_fn=_has_lost_its_worker,
    )
    try:
        return {"result": await attempts(_Submission(member, runner))}
    except WorkerDiedError as error:
        if (path / "manifest.json").exists():  # its process is gone and cannot record it
            folder = RunFolder(path)
            folder.set_status("failed", str(error))
            folder.log_event("failed", str(error))
        return {"error": str(error)}
    except asyncio.CancelledError:
        if (path / "manifest.json").exists():  # its worker has been terminated
            cancel_flow_run_of(RunFolder(path))
        raise
    except Exception as error:  # noqa: BLE001 -- a failure must not stop other members
        return {"error": f"{type(error).__name__}: {error}"}


class _Submission:
    """Passes a member to its task without data that Prefect would inspect."""

    def __init__(self, member: SweepMember, runner: Runner) -> None:
        self._member, self._runner = member, runner
        self._attempts = 0

    async def submit(self) -> Answer:
        """Run the member with all its stages in one worker; warn if the worker is lost."""
        self._attempts += 1
        inline = self._member.experiment.with_settings(
            runner="inline", cluster_address=None, progress="none"
        )
        request = {"work": "member", "parameters": inline.flow_parameters()}
        try:
            return await self._runner.submit(request)
        except WorkerDiedError as error:
            has_more = self._attempts <= self._member.experiment.settings.retries
            logger.warning(
                "member %s lost its worker at attempt %d, %s: %s",
                self._member.label,
                self._attempts,
                "retrying" if has_more else "no retries left",
                error,
            )
            raise


@task(name="member", cache_policy=NO_CACHE, persist_result=False, log_prints=False)
async def _run_member(submission: _Submission) -> Answer:
    return await submission.submit()


async def _has_lost_its_worker(task: Any, run: TaskRun, state: State[Any]) -> bool:  # noqa: ANN401
    """Return whether only the worker failed; failed stages are retried separately."""
    try:
        await state.aresult(raise_on_failure=True)
    except WorkerDiedError:
        return True
    except Exception:  # noqa: BLE001 -- any error of a member
        return False
    return False
