"""The ``sweep`` flow: one experiment for each point of a grid, one after the other."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from prefect import flow

from flows.experiment_flow import experiment
from flows.identity import absolute_settings, read_arms, stable_run_id
from ratchet.errors import ParameterError, StageFailedError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings

logger = logging.getLogger(__name__)


@flow(name="sweep", persist_result=False, validate_parameters=False)
async def sweep(
    hyper_params: dict[str, Any],
    grid: dict[str, list[Any]],
    settings: dict[str, Any] | None = None,
    arms: dict[str, dict[str, Any]] | None = None,
    name: str = "sweep",
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
        The sweep's name, from which the members' ids are made.
    """
    base = HyperParameters.from_dict(hyper_params)
    chosen = absolute_settings(ExperimentSettings.from_dict(settings or {}))
    results, failures = [], []
    for number, changes in enumerate(grid_points(grid)):
        member = base.replace(changes)
        run_id = stable_run_id(f"{name}-{number}", read_arms(member, arms))
        own = chosen.model_copy(update={"run_id": run_id, "tags": {**chosen.tags, "sweep": name}})
        state = await experiment.with_options(flow_run_name=run_id)(
            member.to_dict(), own.to_dict(), arms, name, return_state=True
        )
        if state.is_completed():
            results.append(await state.aresult())
        else:
            failures.append(f"{run_id} ({_describe(changes)}): {state.message}")
    if failures:
        raise StageFailedError("\n".join(failures))
    return results


def grid_points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """List the combinations of a grid, the last parameter changing fastest.

    Raises
    ------
    ParameterError
        If a parameter has no values.
    """
    for path, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ParameterError(f"sweep: {path}: got {values!r}, expected a list of values.")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _describe(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{path}={value}" for path, value in changes.items())
