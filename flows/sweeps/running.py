"""``run_sweep``: run a sweep from plain Python, as :mod:`flows.runs.running` does an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from flows.process import temporary_server
from flows.process.environment import leave_tracebacks_out
from flows.runs.preflight import check_experiment
from flows.runs.result import ExperimentResult
from flows.runs.running import prepare_process, run_to_end
from flows.sweeps.members import HANDED_OVER_SWEEP, ResolvedSweep, resolve_sweep
from flows.sweeps.results import SweepResults
from ratchet.errors import RatchetError, StageFailedError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.sweeps import SweepSpec


def run_sweep(
    hyper_params: HyperParameters | Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]] | SweepSpec,
    settings: ExperimentSettings | None = None,
    *,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
    name: str = "sweep",
    parallel: int = 1,
    sweep_name: str | None = None,
) -> SweepResults:
    """Run an experiment for every combination of values, or go on with it.

    Parameters as :func:`flows.sweep` takes them; ``grid`` may be any specification of
    :mod:`ratchet.parameters.sweeps`. The members' run ids are made here.

    Raises
    ------
    ParameterError
        If a combination makes no sense; nothing has been run then.
    StageFailedError
        If members failed; all others have been run.
    """
    if not isinstance(hyper_params, HyperParameters):
        base_dir = (settings or ExperimentSettings()).base_dir
        hyper_params = HyperParameters.from_dict(hyper_params, base_dir)
    resolved = resolve_sweep(hyper_params, grid, settings, arms, name=name, sweep_name=sweep_name)
    return run_resolved_sweep(resolved, parallel)


def run_resolved_sweep(resolved: ResolvedSweep, parallel: int) -> SweepResults:
    """Run the flow over a sweep (errors as above)."""
    for member in resolved.members:
        check_experiment(member.experiment)
    prepare_process(resolved.settings)
    try:
        import_module("flows.sweep_flow")
        leave_tracebacks_out()
        temporary_server.ensure(resolved.settings.home)
        found = run_to_end(lambda: _run_flow(resolved, parallel))
    except RatchetError:
        raise
    except Exception as error:
        raise StageFailedError(
            f"sweep {resolved.name} failed: {type(error).__name__}: {error}\nFinished stages are"
            " kept. The same command goes on."
        ) from error
    results = [ExperimentResult.from_dict(data) for data in found]
    changes = {member.run_id: member.changes for member in resolved.known_record().members}
    return SweepResults(results, [changes[result.run_id] for result in results])


async def _run_flow(resolved: ResolvedSweep, parallel: int) -> list[dict[str, Any]]:
    from flows.sweep_flow import sweep

    HANDED_OVER_SWEEP.set(resolved)  # ends with this task
    named = sweep.with_options(flow_run_name=resolved.name)
    found: list[dict[str, Any]] = await named(**resolved.flow_parameters(), parallel=parallel)
    return found
