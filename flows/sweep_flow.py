"""The ``sweep`` flow: one experiment per member, sequentially or in parallel.

A sweep that is started again resumes: stages that its members have finished are in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from prefect import flow

from flows.experiment_flow import experiment
from flows.process.heartbeats import END_HOOKS
from flows.runners.factory import open_runner
from flows.runs.pause_and_cancel import cancelled_when_interrupted
from flows.runs.resolve import RESOLVED_EXPERIMENT
from flows.sweeps.dispatch import MemberDone, run_concurrently
from flows.sweeps.member_progress import MemberProgress
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
from ratchet.errors import ParameterError, StageFailedError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.sweeps import OptunaSweep
from ratchet.reports.sweep.page import LiveSweepPage
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.run_lock import RunLock
from ratchet.tracking.sweep_folder import write_sweep
from trainers.progress import IterationContext


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


async def _run_inline(member: SweepMember) -> dict[str, Any]:
    """Run a member as a subflow.

    Raises CancelledError if the sweep was interrupted, even if the member failed because of that.
    """
    RESOLVED_EXPERIMENT.set(member.experiment)
    state = await experiment(**member.experiment.flow_parameters(), return_state=True)
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
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
