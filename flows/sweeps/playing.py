"""Play the members of a sweep with a runner: one whose worker dies goes on with another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from flows.runners.base import Answer, Runner
from flows.sweeps.members import SweepMember
from ratchet.errors import WorkerDiedError
from ratchet.tracking.run_folder import RunFolder

MemberDone = Callable[[SweepMember, dict[str, Any]], None]


async def play_at_once(members: Iterable[SweepMember], done: MemberDone, runner: Runner) -> None:
    """Run members, begun in their order, as many at a time as the runner has slots.

    ``done`` is called with each member and its answer, in the order in which they end: ``result``,
    an :class:`flows.runs.result.ExperimentResult` as plain data, or ``error``. Only then the next
    member is drawn, so that which it is may depend on those that have ended.
    """
    waiting = iter(members)

    async def work() -> None:
        for member in waiting:
            done(member, await _play(member, runner))

    workers = [asyncio.ensure_future(work()) for _ in range(runner.slots)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _play(member: SweepMember, runner: Runner) -> dict[str, Any]:
    settings = member.experiment.settings
    attempts = _play_member.with_options(
        task_run_name=member.label,
        retries=settings.retries,
        retry_delay_seconds=settings.retry_delay_seconds,
        retry_condition_fn=_has_lost_its_worker,
    )
    try:
        return {"result": await attempts(_Submission(member, runner))}
    except WorkerDiedError as error:
        _note(member, str(error))
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 -- one that fails leaves the others alone
        return {"error": f"{type(error).__name__}: {error}"}


class _Submission:
    """Carries a member into its task: no data that Prefect would look into."""

    def __init__(self, member: SweepMember, runner: Runner) -> None:
        self._member, self._runner = member, runner

    async def submit(self) -> Answer:
        """Have the member run; of what it makes, all in one place."""
        alone = self._member.experiment.with_settings(
            runner="inline", cluster_address=None, progress="none"
        )
        request = {"work": "member", "parameters": alone.flow_parameters()}
        return await self._runner.submit(request)


@task(name="member", cache_policy=NO_CACHE, persist_result=False, log_prints=False)
async def _play_member(submission: _Submission) -> Answer:
    return await submission.submit()


async def _has_lost_its_worker(task: Any, run: TaskRun, state: State[Any]) -> bool:  # noqa: ANN401
    """Return whether nothing but the worker has failed; stages have attempts of their own."""
    try:
        await state.aresult(raise_on_failure=True)
    except WorkerDiedError:
        return True
    except Exception:  # noqa: BLE001 -- whatever a member failed with
        return False
    return False


def _note(member: SweepMember, text: str) -> None:
    """Note in the member's run folder why it ended: nobody else could."""
    path = member.experiment.run_path
    if (path / "manifest.json").exists():
        folder = RunFolder(path)
        folder.set_status("failed", text)
        folder.log_event("failed", text)
