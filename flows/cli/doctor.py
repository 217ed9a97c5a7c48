"""``ratchet doctor``: check that everything runs need is available.

The checks are functions of :mod:`flows.process.checks`; they change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.completion import experiment_files
from flows.cli.runs import DEFAULT_RUNS, RunsFolder
from flows.process.checks import machine, runs, servers
from flows.process.checks.base import (
    Check,
    CheckFunction,
    CheckResult,
    Installation,
    bad,
    good,
    warning,
)
from flows.process.environment import prepare_environment
from flows.process.messages import print_table

CHECKS: tuple[CheckFunction, ...] = (
    *(machine.python, machine.versions, machine.incompatible_packages, machine.extras),
    machine.folders,
    *(servers.prefect, servers.prefect_ui, servers.prefect_access, servers.prefect_database),
    *(servers.mlflow, servers.mlflow_database),
    *(runs.interrupted_runs, runs.stalled_stages, runs.orphaned_flow_runs, runs.dead_scheduler),
    runs.outdated_deployments,
    *(machine.threads, machine.sandbox, machine.ports),
)
"""All checks, in the order in which they are performed."""


def doctor(
    file: Annotated[
        str | None,
        typer.Argument(
            help="An experiment file to check: could it run on this machine?",
            autocompletion=experiment_files,
        ),
    ] = None,
    home: Annotated[str, typer.Option(help="Ratchet's home folder.")] = ".ratchet",
    runs: RunsFolder = DEFAULT_RUNS,
    store: Annotated[
        str | None, typer.Option(help="Folder or URL of the store (default: in the home).")
    ] = None,
) -> None:
    """Check this installation; print the commands that fix problems.

    The exit code is 1 if a check fails.
    """
    prepare_environment(home, make_folders=False)
    checks = [*all_checks(Installation(Path(home), Path(runs), store))]
    if file:
        checks += check_experiment(file)
    print_table("", ("checked", "result", "details"), checks)
    if any(check.verdict is CheckResult.BAD for check in checks):
        raise typer.Exit(1)


def all_checks(installation: Installation) -> Iterator[Check]:
    """Perform all checks in order."""
    for check in CHECKS:
        yield from check(installation)


def check_experiment(file: str) -> Iterator[Check]:
    """Check for problems that would prevent an experiment from running on this machine."""
    from flows.runs.preflight import find_problems
    from flows.runs.resolve import resolve_file
    from trainers.config_warnings import find_config_warnings

    resolved = resolve_file(file)
    problems = find_problems(resolved)
    for problem in problems:
        yield bad(file, str(problem))
    if not problems:
        yield good(file, "could run here")
        for text in find_config_warnings(resolved.arms, resolved.settings.base_dir):
            yield warning(file, text)
