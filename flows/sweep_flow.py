"""The ``sweep`` flow: one experiment for each member, one after the other or side by side.

A sweep that is started again goes on: what its members have finished is found in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from prefect import flow

from flows.experiment_flow import experiment
from flows.runners.choosing import open_runner
from flows.runs.resolving import HANDED_OVER
from flows.sweeps.ending import tell_mlflow
from flows.sweeps.members import (
    HANDED_OVER_SWEEP,
    ResolvedSweep,
    SweepMember,
    has_failed,
    resolve_sweep,
)
from flows.sweeps.playing import MemberDone, play_at_once
from flows.sweeps.trials import Trials
from ratchet.errors import ParameterError, StageFailedError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.sweeps import OptunaSweep
from ratchet.reports.sweep.growing import GrowingPage
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.presence import Presence
from ratchet.tracking.sweep_folder import write_sweep
from trainers.progress import IterationContext


@flow(name="sweep", persist_result=False, validate_parameters=False)
async def sweep(
    hyper_params: dict[str, Any],
    grid: dict[str, Any],
    settings: dict[str, Any] | None = None,
    arms: dict[str, dict[str, Any]] | None = None,
    name: str = "sweep",
    parallel: int = 1,
    sweep_name: str | None = None,
) -> list[dict[str, Any]]:
    """Run an experiment for every combination of values; they share what they can.

    A member that fails does not keep the others from running; the sweep fails in the end.

    Parameters
    ----------
    hyper_params, settings, arms
        As the ``experiment`` flow takes them.
    grid
        Dotted path → the values to try; or what the `sweep` section of a file says.
    name
        The experiment's name, from which the members' ids are made.
    parallel
        How many members run at a time, if more than one: ``settings.max_parallel``, in processes
        unless ``settings.runner`` says where. With the runner "inline" they are subflows of this
        flow, one after the other.
    sweep_name
        The sweep's own name; made of its members if not given.

    Raises
    ------
    ParameterError
        If a combination makes no sense; nothing has been run then.
    StageFailedError
        If members failed, with the commands that go on.
    """
    resolved = HANDED_OVER_SWEEP.get()
    if resolved is None:
        chosen = ExperimentSettings.from_dict(settings or {})
        base = HyperParameters.from_dict(hyper_params, chosen.base_dir)
        resolved = await asyncio.to_thread(
            resolve_sweep, base, grid, chosen, arms, name=name, sweep_name=sweep_name
        )
    return await play_sweep(resolved, parallel)


async def play_sweep(resolved: ResolvedSweep, parallel: int) -> list[dict[str, Any]]:
    """Run the members of a resolved sweep inside the flow that is running; as :func:`sweep`.

    Returns the results of those that were run, or had ended before.
    """
    spec, runs = resolved.spec, resolved.settings.runs
    settings = side_by_side(resolved.settings, parallel)
    trials = None
    if isinstance(spec, OptunaSweep):
        _refuse_all_at_once(settings)
        trials = Trials(resolved, spec)
    else:
        write_sweep(runs, resolved.record(resolved.members))
    results: dict[str, dict[str, Any]] = trials.earlier_results() if trials else {}
    failures: dict[str, str] = {}
    presence = await asyncio.to_thread(Presence, resolved.folder)
    page = GrowingPage(runs, resolved.sweep_id)

    def done(member: SweepMember, answer: dict[str, Any]) -> None:
        if "result" in answer:
            if trials is not None:
                trials.ended(member)
            results[member.run_id] = answer["result"]
        else:
            failures[member.run_id] = f"{member.label}: {answer['error']}"
        page.nudge()

    members = trials.waiting() if trials else iter(resolved.members)
    if resolved.retry_failed:
        members = trials.failed() if trials else filter(has_failed, resolved.members)
    try:
        if settings.runner != "inline":
            await _play_elsewhere(resolved, members, done, settings)
        else:
            for member in members:
                done(member, await _play_here(member))
    finally:
        presence.release()
        await asyncio.to_thread(_tell_how_it_ended, resolved, page)
    if failures:
        raise StageFailedError(_describe_failures(failures, resolved.num_members))
    return [results[m.run_id] for m in resolved.known_record().members if m.run_id in results]


def _tell_how_it_ended(resolved: ResolvedSweep, page: GrowingPage) -> None:
    page.close()
    tell_mlflow(resolved)


async def _play_here(member: SweepMember) -> dict[str, Any]:
    """Run a member as a subflow."""
    HANDED_OVER.set(member.experiment)
    state = await experiment(**member.experiment.flow_parameters(), return_state=True)
    if state.is_completed():
        return {"result": await state.aresult()}
    return {"error": str(state.message)}


async def _play_elsewhere(
    resolved: ResolvedSweep,
    members: Iterator[SweepMember],
    done: MemberDone,
    settings: ExperimentSettings,
) -> None:
    """Run members side by side, with a step of progress for each that ends."""
    most = resolved.num_members
    with IterationContext(most) as progress:
        progress.set_description("Sweep")

        def done_and_told(member: SweepMember, answer: dict[str, Any]) -> None:
            done(member, answer)
            progress.set_description(f"Sweep · {member.label}")
            metrics = answer.get("result", {}).get("metrics", {}).get(MAIN_ARM, {})
            progress.set_postfix(metrics.get("test", {}))
            progress.step()

        async with open_runner(settings, resolved.folder, most) as runner:
            await play_at_once(members, done_and_told, runner)


def side_by_side(settings: ExperimentSettings, parallel: int) -> ExperimentSettings:
    """Return the settings of a sweep of which so many members are asked to run at a time."""
    if parallel == 1:
        return settings
    runner = "processes" if settings.runner == "inline" else settings.runner
    return settings.model_copy(update={"runner": runner, "max_parallel": parallel})


def _refuse_all_at_once(settings: ExperimentSettings) -> None:
    """Refuse a search all of whose members would be chosen before any has ended."""
    if settings.runner == "work_pool" and settings.max_parallel is None:
        raise ParameterError(
            "settings.max_parallel: got none with settings.runner=work_pool, expected how many"
            " members run at a time: a pool takes all at once, and Optuna chooses each from what"
            " those before came to. Add settings.max_parallel=N."
        )


def _describe_failures(failures: dict[str, str], num_members: int) -> str:
    lines = [f"{len(failures)} of {num_members} members failed:"]
    for run_id, text in failures.items():
        lines += [f"  {text}", f"    ratchet resume {run_id}"]
    lines.append(
        "The others are finished. The same command goes on with those that failed; with"
        " --retry-failed it runs nothing else."
    )
    return "\n".join(lines)
