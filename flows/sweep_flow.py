"""The ``sweep`` flow: one experiment per member, sequentially or in parallel.

A sweep that is started again resumes: stages that its members have finished are in the store. A
member whose worker dies is resumed by another one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from flows.experiment_flow import experiment
from flows.process.flow_runs import states_by_name
from flows.process.heartbeats import END_HOOKS
from flows.process.progress import format_seconds
from flows.runners.base import Answer, Runner
from flows.runners.factory import open_runner
from flows.runs.pause_and_cancel import cancel_flow_run_of, cancelled_when_interrupted
from flows.runs.resolve import RESOLVED_EXPERIMENT
from flows.sweeps.members import (
    RESOLVED_SWEEP,
    ResolvedSweep,
    SweepMember,
    has_failed,
    resolve_sweep,
)
from flows.sweeps.preregistration import preregister
from flows.sweeps.summary import sync_mlflow
from flows.sweeps.trials import Trials
from ratchet.errors import ParameterError, RatchetError, StageFailedError, WorkerDiedError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.sweeps import OptunaSweep
from ratchet.reports.sweep.page import LiveSweepPage
from ratchet.tracking.live_file import read_live
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_lock import RunLock
from ratchet.tracking.sweep_folder import write_sweep
from trainers.progress import IterationContext

logger = logging.getLogger(__name__)

MemberDone = Callable[[SweepMember, dict[str, Any]], None]
_INTERVAL_SECONDS = 5.0
_SILENT_SECONDS = 60.0  # after which the time since the last progress is shown
_NUM_SHOWN = 3


@flow(name="sweep", persist_result=False, validate_parameters=False, **END_HOOKS)
async def sweep(
    hyper_params: dict[str, Any],
    grid: dict[str, Any],
    settings: dict[str, Any] | None = None,
    arms: dict[str, dict[str, Any]] | None = None,
    name: str = "sweep",
    parallel: int = 1,
    sweep_name: str | None = None,
) -> list[dict[str, Any]]:
    """Run an experiment for every combination of values; members share cached stages.

    If a member fails, the others still run; the sweep then fails at its end.

    Parameters
    ----------
    hyper_params, settings, arms
        As in the ``experiment`` flow.
    grid
        Values by dotted path, or the content of a file's `sweep` section.
    name
        Name of the experiment, which the members' ids contain.
    parallel
        Number of concurrent members; overrides ``settings.max_parallel`` if above 1, and uses
        processes unless ``settings.runner`` is set. With the runner "inline" members are
        sequential subflows of this flow.
    sweep_name
        Name of the sweep; derived from its members by default.

    Raises
    ------
    ParameterError
        If a combination is invalid; raised before any member runs.
    StageFailedError
        If members failed, with the commands that resume them.
    """
    with cancelled_when_interrupted():
        resolved = RESOLVED_SWEEP.get()
        if resolved is None:
            chosen = ExperimentSettings.from_dict(settings or {})
            base = HyperParameters.from_dict(hyper_params, chosen.base_dir)
            resolved = await asyncio.to_thread(
                resolve_sweep, base, grid, chosen, arms, name=name, sweep_name=sweep_name
            )
        return await run_members(resolved, parallel)


async def run_members(resolved: ResolvedSweep, parallel: int) -> list[dict[str, Any]]:
    """Run the members of a resolved sweep within the current flow; as :func:`sweep`.

    Returns the results of members that ran or had already ended.
    """
    spec, runs = resolved.spec, resolved.settings.runs
    settings = with_parallelism(resolved.settings, parallel)
    trials = None
    if isinstance(spec, OptunaSweep):
        _require_limit(settings)
        trials = Trials(resolved, spec)
    else:
        record = resolved.record(resolved.members)
        write_sweep(runs, preregister(record, resolved.preregistered, runs))
    results: dict[str, dict[str, Any]] = trials.earlier_results() if trials else {}
    failures: dict[str, str] = {}
    lock = await asyncio.to_thread(RunLock, resolved.folder)
    page = LiveSweepPage(runs, resolved.sweep_id)

    def done(member: SweepMember, answer: dict[str, Any]) -> None:
        if "result" in answer:
            if trials is not None:
                trials.record_outcome(member)
            results[member.run_id] = answer["result"]
        else:
            failures[member.run_id] = f"{member.label}: {answer['error']}"
        page.nudge()

    members = trials.waiting() if trials else iter(resolved.members)
    if resolved.retry_failed:
        members = trials.failed() if trials else filter(has_failed, resolved.members)
    try:
        if settings.runner != "inline":
            await _run_with_runner(resolved, members, done, settings)
        else:
            for member in members:
                done(member, await _run_inline(member))
    finally:
        lock.release()
        await asyncio.to_thread(page.close)
        await asyncio.to_thread(sync_mlflow, resolved)
    if failures:
        raise StageFailedError(_describe_failures(failures, resolved.num_members))
    return [results[m.run_id] for m in resolved.known_record().members if m.run_id in results]


async def _run_inline(member: SweepMember, *, again: bool = True) -> dict[str, Any]:
    """Run a member as a subflow; once ``again`` if Prefect returns its end without its result.

    It does if its client repeats the request that ends the flow run, because the response to the
    first was lost. All stages are stored then. Raises CancelledError if the sweep was interrupted,
    even if the member failed because of that.
    """
    RESOLVED_EXPERIMENT.set(member.experiment)
    state = await experiment(**member.experiment.flow_parameters(), return_state=True)
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    if state.is_completed() and state.data is None and again:
        return await _run_inline(member, again=False)
    if state.is_completed():
        return {"result": await state.aresult()}
    return {"error": str(state.message)}


async def _run_with_runner(
    resolved: ResolvedSweep,
    members: Iterator[SweepMember],
    done: MemberDone,
    settings: ExperimentSettings,
) -> None:
    """Run members in parallel; report progress of the running ones and for each finished one."""
    num_members, running = resolved.num_members, MemberProgress()
    with IterationContext(num_members) as progress:
        progress.set_description("Sweep")

        def report(member: SweepMember, answer: dict[str, Any]) -> None:
            running.ended(member)
            done(member, answer)
            progress.set_description(f"Sweep · {member.label}")
            metrics = answer.get("result", {}).get("metrics", {}).get(MAIN_ARM, {})
            progress.set_postfix(metrics.get("test", {}))
            progress.step()

        async with open_runner(settings, resolved.folder, num_members) as runner:
            showing = asyncio.create_task(running.show(progress))
            try:
                await run_concurrently(running.started(members), report, runner)
            finally:
                showing.cancel()


def with_parallelism(settings: ExperimentSettings, parallel: int) -> ExperimentSettings:
    """Return the settings of a sweep with the given number of concurrent members."""
    if parallel == 1:
        return settings
    runner = "processes" if settings.runner == "inline" else settings.runner
    return settings.model_copy(update={"runner": runner, "max_parallel": parallel})


def _require_limit(settings: ExperimentSettings) -> None:
    """Refuse a search whose members would all be chosen before any result is available."""
    if settings.runner == "work_pool" and settings.max_parallel is None:
        raise ParameterError(
            "settings.max_parallel: got none with settings.runner=work_pool, expected the number of"
            " concurrent members: a pool has no limit, and Optuna chooses each member from the"
            " results of earlier ones. Add settings.max_parallel=N."
        )


def _describe_failures(failures: dict[str, str], num_members: int) -> str:
    lines = [f"{len(failures)} of {num_members} members failed:"]
    for run_id, text in failures.items():
        lines += [f"  {text}", f"    ratchet resume {run_id}"]
    lines.append(
        "All others have finished. Run the same command again to resume the failed members, with"
        " --retry-failed only these."
    )
    return "\n".join(lines)


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


class MemberProgress:
    """Describes the running members in the sweep's progress.

    A member's run folder contains its progress if this machine has access to it. Otherwise, and for
    members that no process runs, the state of their flow run on the Prefect server is shown.
    """

    def __init__(self, states: Callable[[list[str]], dict[str, str]] = states_by_name) -> None:
        self._states = states
        self._running: dict[str, SweepMember] = {}

    def started(self, members: Iterable[SweepMember]) -> Iterator[SweepMember]:
        """Yield the members; each is running from then on."""
        for member in members:
            self._running[member.run_id] = member
            yield member

    def ended(self, member: SweepMember) -> None:
        """Remove a member that is no longer running."""
        del self._running[member.run_id]

    async def show(self, progress: IterationContext) -> None:
        """Update the description of the progress until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            if self._running:
                try:
                    progress.set_description(await asyncio.to_thread(self.describe))
                except (OSError, RatchetError) as error:  # e.g. a shared folder that is away
                    logger.warning("could not read the progress of members: %s", error)

    def describe(self) -> str:
        """Return one line about the running members."""
        members = list(self._running.values())
        states = self._states([member.run_id for member in members])
        lines = [
            f"{member.label}: {_status(member, states.get(member.run_id))}"
            for member in members[:_NUM_SHOWN]
        ]
        more = len(members) - len(lines)
        return "Sweep · " + "; ".join([*lines, *([f"{more} more"] if more else [])])


def _status(member: SweepMember, state: str | None) -> str:
    """Return the progress in a member's run folder, or the state of its flow run."""
    path = member.experiment.run_path
    folder = RunFolder(path) if (path / "manifest.json").exists() else None
    status = folder.status if folder is not None else None
    live = read_live(path) if status == "running" else None
    if folder is None or live is None:
        parts = [status, f"{state.lower()} in Prefect" if state else None]
        return ", ".join(filter(None, parts)) or "waiting"
    count = f" {live['done']}/{live['expected']}" if live["expected"] else ""
    silent = time.time() - live["time"]
    since = f", no progress for {format_seconds(silent)}" if silent > _SILENT_SECONDS else ""
    return f"{live['doing'] or 'running'}{count}, {len(folder.manifest.stages)} stages done{since}"
