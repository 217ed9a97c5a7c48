"""The ``sweep`` flow: one experiment for each point of a grid, one after the other or side by side.

A sweep that is started again goes on: what its members have finished is found in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow

from flows.experiment_flow import experiment
from flows.runners.choosing import open_runner
from flows.runs.resolving import HANDED_OVER
from flows.sweeps.members import HANDED_OVER_SWEEP, ResolvedSweep, SweepMember, resolve_sweep
from flows.sweeps.playing import MemberDone, play_at_once
from ratchet.errors import StageFailedError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.environment import command_line
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.presence import Presence
from ratchet.tracking.sweep_folder import SweepMemberRecord, SweepRecord, write_sweep
from trainers.progress import IterationContext


@flow(name="sweep", persist_result=False, validate_parameters=False)
async def sweep(
    hyper_params: dict[str, Any],
    grid: dict[str, list[Any]],
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
        Dotted path → the values to try.
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
    """Run the members of a resolved sweep inside the flow that is running; as :func:`sweep`."""
    members, settings = resolved.members, side_by_side(resolved.settings, parallel)
    folder = _write_record(resolved)
    results: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}

    def done(member: SweepMember, answer: dict[str, Any]) -> None:
        if "result" in answer:
            results[member.run_id] = answer["result"]
        else:
            failures[member.run_id] = f"{member.label}: {answer['error']}"

    presence = await asyncio.to_thread(Presence, folder)
    try:
        if settings.runner != "inline":
            await _play_elsewhere(members, done, settings, folder)
        else:
            for member in members:
                done(member, await _play_here(member))
    finally:
        presence.release()
    if failures:
        raise StageFailedError(_describe_failures(failures, len(members)))
    return [results[member.run_id] for member in members]


async def _play_here(member: SweepMember) -> dict[str, Any]:
    """Run a member as a subflow."""
    named = experiment.with_options(flow_run_name=member.run_id)
    HANDED_OVER.set(member.experiment)
    state = await named(**member.experiment.flow_parameters(), return_state=True)
    if state.is_completed():
        return {"result": await state.aresult()}
    return {"error": str(state.message)}


async def _play_elsewhere(
    members: Sequence[SweepMember], done: MemberDone, settings: ExperimentSettings, folder: Path
) -> None:
    """Run members side by side, with a step of progress for each that ends."""
    with IterationContext(len(members)) as progress:
        progress.set_description("Sweep")

        def done_and_told(member: SweepMember, answer: dict[str, Any]) -> None:
            done(member, answer)
            progress.set_description(f"Sweep · {member.label}")
            metrics = answer.get("result", {}).get("metrics", {}).get(MAIN_ARM, {})
            progress.set_postfix(metrics.get("test", {}))
            progress.step()

        async with open_runner(settings, folder, len(members)) as runner:
            await play_at_once(members, done_and_told, runner)


def side_by_side(settings: ExperimentSettings, parallel: int) -> ExperimentSettings:
    """Return the settings of a sweep of which so many members are asked to run at a time."""
    if parallel == 1:
        return settings
    runner = "processes" if settings.runner == "inline" else settings.runner
    return settings.model_copy(update={"runner": runner, "max_parallel": parallel})


def _write_record(resolved: ResolvedSweep) -> Path:
    members = [SweepMemberRecord(run_id=m.run_id, changes=m.changes) for m in resolved.members]
    record = SweepRecord(
        sweep_id=resolved.sweep_id,
        name=resolved.name,
        grid=resolved.grid,
        members=members,
        command=command_line(),
    )
    return write_sweep(resolved.settings.runs, record)


def _describe_failures(failures: dict[str, str], num_members: int) -> str:
    lines = [f"{len(failures)} of {num_members} members failed:"]
    for run_id, text in failures.items():
        lines += [f"  {text}", f"    ratchet resume {run_id}"]
    lines.append("The others are finished. The same command goes on with those that failed.")
    return "\n".join(lines)
