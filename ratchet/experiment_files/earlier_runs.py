"""Parameters of an earlier run under those of a file: ``base_run``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.errors import ParameterError, shown
from ratchet.parameters.changes import change_every_agent, merge_changes
from ratchet.parameters.converters import upgraded

_MAIN_ARM = "main"


def with_base_run(data: Mapping[str, Any], runs: str | Path) -> dict[str, Any]:
    """Put parameters on top of those of the run that ``base_run`` names, if it does.

    ``data`` are nested, as a file has them. What they change of ``agents._default`` holds for all
    agents that they do not name.

    Raises
    ------
    ParameterError
        If a run is needed and none is named.
    RunNotFoundError
        If there is no such run.
    """
    from ratchet.tracking.run_folder import find_run

    base_run = data.get("base_run")
    if not isinstance(base_run, Mapping) or base_run.get("base_run_type", "none") == "none":
        return dict(data)
    run_id = base_run.get("run_id")
    if not isinstance(run_id, str):
        raise ParameterError(
            f"base_run.run_id: got {shown(run_id)}, expected the id of the run to build on, since"
            f" base_run.base_run_type is {shown(base_run['base_run_type'])}."
        )
    arms = find_run(runs, run_id).manifest.arms
    base = {**upgraded(arms[_MAIN_ARM], f"run {run_id}"), "base_run": {}}
    return merge_changes(change_every_agent(base, data), data)
