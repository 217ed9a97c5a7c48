"""All checks, in the order in which ``ratchet doctor`` makes them."""

from __future__ import annotations

from collections.abc import Iterator

from flows.process.checks.base import Check, Look, Places
from flows.process.checks.databases import prefect_database
from flows.process.checks.machine import ports, sandbox, threads
from flows.process.checks.mlflow import mlflow, mlflow_database, mlflow_mode
from flows.process.checks.runs import (
    dead_scheduler,
    interrupted_runs,
    lost_flow_runs,
    stalled_stages,
)
from flows.process.checks.servers import prefect, prefect_access, prefect_ui
from flows.process.checks.storage import folders
from flows.process.checks.versions import extras, python, unfit_packages, versions

CHECKS: tuple[Look, ...] = (
    *(python, versions, unfit_packages, extras),
    folders,
    *(prefect, prefect_ui, prefect_access, prefect_database),
    *(mlflow, mlflow_database, mlflow_mode),
    *(interrupted_runs, stalled_stages, lost_flow_runs, dead_scheduler),
    *(threads, sandbox, ports),
)


def all_checks(places: Places) -> Iterator[Check]:
    """Make all checks, one after the other; none changes anything."""
    for look in CHECKS:
        yield from look(places)
