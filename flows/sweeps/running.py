"""``run_sweep``: run a sweep from Python, the counterpart of :mod:`flows.runs.run`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from flows.process import temporary_server
from flows.process.environment import hide_tracebacks
from flows.runs.preflight import check_experiment
from flows.runs.resolve import Parameters, load_file
from flows.runs.result import ExperimentResult
from flows.runs.run import prepare_process, run_to_end
from flows.sweeps.members import RESOLVED_SWEEP, ResolvedSweep, resolve_sweep
from flows.sweeps.summary import SweepResults
from ratchet.errors import RatchetError, StageFailedError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.sweeps import SweepSpec


def run_sweep(
    hyper_params: Parameters,
    grid: Mapping[str, Sequence[Any]] | SweepSpec,
    settings: ExperimentSettings | None = None,
    *,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
    name: str | None = None,
    parallel: int = 1,
    sweep_name: str | None = None,
) -> SweepResults:
    """Run or resume an experiment for every combination of values.

    Parameters as in :func:`flows.sweep`; ``grid`` may be any specification of
    :mod:`ratchet.parameters.sweeps`, ``hyper_params`` the path of an experiment file.

    Raises
    ------
    ParameterError
        If a combination is invalid; raised before any member runs.
    StageFailedError
        If members failed; all others have run.
    """
    preregistered = None
    if isinstance(hyper_params, str | os.PathLike):
        file = load_file(hyper_params, settings)
        preregistered = file.preregistered
        arms, settings = {**file.arm_changes, **(arms or {})}, file.settings
        hyper_params, name = file.hyper_params, name or file.name
    if not isinstance(hyper_params, HyperParameters):
        base_dir = (settings or ExperimentSettings()).base_dir
        hyper_params = HyperParameters.from_dict(hyper_params, base_dir)
    resolved = resolve_sweep(
        hyper_params,
        grid,
        settings,
        arms,
        name=name or "sweep",
        sweep_name=sweep_name,
        preregistered=preregistered,
    )
    return run_resolved_sweep(resolved, parallel)


def run_resolved_sweep(resolved: ResolvedSweep, parallel: int) -> SweepResults:
    """Run the flow over a sweep (errors as above)."""
    for member in resolved.members:
        check_experiment(member.experiment)
    prepare_process(resolved.settings)
    try:
        import_module("flows.sweep_flow")
        hide_tracebacks()
        temporary_server.ensure(resolved.settings.home)
        data = run_to_end(lambda: _run_flow(resolved, parallel))
    except RatchetError:
        raise
    except Exception as error:
        raise StageFailedError(
            f"sweep {resolved.name} failed: {type(error).__name__}: {error}\nFinished stages are"
            " stored. Run the same command again to resume."
        ) from error
    results = [ExperimentResult.from_dict(each) for each in data]
    changes = {member.run_id: member.changes for member in resolved.known_record().members}
    return SweepResults(results, [changes[result.run_id] for result in results])


async def _run_flow(resolved: ResolvedSweep, parallel: int) -> list[dict[str, Any]]:
    from flows.sweep_flow import sweep

    RESOLVED_SWEEP.set(resolved)  # valid until this task ends
    named = sweep.with_options(flow_run_name=lambda: resolved.name)
    results: list[dict[str, Any]] = await named(**resolved.flow_parameters(), parallel=parallel)
    return results
