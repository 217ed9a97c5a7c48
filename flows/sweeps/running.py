"""``run_sweep``: run a sweep from plain Python, as :mod:`flows.runs.running` does an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flows.process import temporary_server
from flows.runs.identity import absolute_settings
from flows.runs.result import ExperimentResult
from flows.runs.running import prepare_process, run_to_end
from ratchet.errors import RatchetError, StageFailedError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings


def run_sweep(
    hyper_params: HyperParameters | Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    settings: ExperimentSettings | None = None,
    *,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
    name: str = "sweep",
    parallel: int = 1,
    sweep_name: str | None = None,
) -> list[ExperimentResult]:
    """Run an experiment for every combination of values, or go on with it.

    Parameters
    ----------
    hyper_params, grid, arms, name, parallel, sweep_name
        As :func:`flows.sweep` takes them.
    settings
        Where and how the members run; their run ids are made here.

    Raises
    ------
    ParameterError
        If a combination makes no sense; nothing has been run then.
    StageFailedError
        If members failed; all others have been run.
    """
    chosen = absolute_settings(settings or ExperimentSettings())
    if not isinstance(hyper_params, HyperParameters):
        hyper_params = HyperParameters.from_dict(hyper_params, chosen.base_dir)
    prepare_process(chosen)
    parameters: dict[str, Any] = {
        "hyper_params": hyper_params.to_dict(),
        "grid": {path: list(values) for path, values in grid.items()},
        "settings": chosen.to_dict(),
        "arms": {arm: dict(changes) for arm, changes in (arms or {}).items()},
        "name": name,
        "parallel": parallel,
        "sweep_name": sweep_name,
    }
    try:
        temporary_server.ensure(chosen.home)
        found = run_to_end(lambda: _sweep(name, parameters))
    except RatchetError:
        raise
    except Exception as error:
        raise StageFailedError(
            f"sweep {name} failed: {type(error).__name__}: {error}\nFinished stages are kept. The"
            " same command goes on."
        ) from error
    return [ExperimentResult.from_dict(data) for data in found]


async def _sweep(name: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    from flows.sweep_flow import sweep

    found: list[dict[str, Any]] = await sweep.with_options(flow_run_name=name)(**parameters)
    return found
