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
from flows.runs.identity import MAIN_ARM, absolute_settings
from flows.sweeps.members import SweepMember, sweep_id, sweep_members
from flows.sweeps.processes import MakeRequest, MemberDone, play_side_by_side
from ratchet.errors import StageFailedError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.environment import command_line
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
        How many members run at a time, each in a process of its own. With one they are subflows of
        this flow.
    sweep_name
        The sweep's own name; made of its members if not given.

    Raises
    ------
    ParameterError
        If a combination makes no sense; nothing has been run then.
    StageFailedError
        If members failed, with the commands that go on.
    """
    chosen = absolute_settings(ExperimentSettings.from_dict(settings or {}))
    base = HyperParameters.from_dict(hyper_params, chosen.base_dir)
    members = await asyncio.to_thread(sweep_members, base, grid, arms, name=name, settings=chosen)
    ident = sweep_name or sweep_id(name, members)
    folder = _write_record(ident, members, grid, chosen, name)
    results: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}

    def request(member: SweepMember) -> dict[str, Any]:
        return _request(member, chosen, folder.name, name)

    def done(member: SweepMember, answer: dict[str, Any]) -> None:
        if "result" in answer:
            results[member.run_id] = answer["result"]
        else:
            failures[member.run_id] = f"{member.label}: {answer['error']}"

    if parallel > 1:
        await _play_in_processes(members, request, done, parallel, folder)
    else:
        for member in members:
            done(member, await _play_here(member, request(member)))
    if failures:
        raise StageFailedError(_describe_failures(failures, len(members)))
    return [results[member.run_id] for member in members]


async def _play_here(member: SweepMember, request: dict[str, Any]) -> dict[str, Any]:
    """Run a member as a subflow."""
    named = experiment.with_options(flow_run_name=member.run_id)
    main, others = _split(request["arms"])
    state = await named(main, request["settings"], others, request["name"], return_state=True)
    if state.is_completed():
        return {"result": await state.aresult()}
    return {"error": str(state.message)}


async def _play_in_processes(
    members: Sequence[SweepMember],
    request: MakeRequest,
    done: MemberDone,
    parallel: int,
    folder: Path,
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

        await play_side_by_side(
            members, request, done_and_told, num_processes=parallel, log_folder=folder
        )


def _request(
    member: SweepMember, settings: ExperimentSettings, sweep: str, name: str
) -> dict[str, Any]:
    """Return all that running a member needs, as plain data."""
    own = {
        "run_id": member.run_id,
        "parent_run_id": sweep,
        "tags": {**settings.tags, "sweep": sweep},
    }
    return {
        "arms": {arm: params.to_dict() for arm, params in member.arms.items()},
        "settings": settings.model_copy(update=own).to_dict(),
        "name": name,
    }


def _split(arms: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    return arms[MAIN_ARM], {arm: data for arm, data in arms.items() if arm != MAIN_ARM}


def _write_record(
    ident: str,
    members: Sequence[SweepMember],
    grid: dict[str, list[Any]],
    settings: ExperimentSettings,
    name: str,
) -> Path:
    record = SweepRecord(
        sweep_id=ident,
        name=name,
        grid=grid,
        members=[SweepMemberRecord(run_id=m.run_id, changes=m.changes) for m in members],
        command=command_line(),
    )
    return write_sweep(settings.runs, record)


def _describe_failures(failures: dict[str, str], num_members: int) -> str:
    lines = [f"{len(failures)} of {num_members} members failed:"]
    for run_id, text in failures.items():
        lines += [f"  {text}", f"    ratchet resume {run_id}"]
    lines.append("The others are finished. The same command goes on with those that failed.")
    return "\n".join(lines)
