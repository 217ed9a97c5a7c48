"""``ratchet doctor``: say whether all is there that runs need.

The checks are those of :mod:`flows.process.checks`; they change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.completion import experiment_files
from flows.cli.runs import DEFAULT_RUNS, RunsFolder
from flows.process.checks.base import Check, CheckResult, Places
from flows.process.checks.every import all_checks
from flows.process.environment import prepare_environment
from flows.process.messages import print_table


def doctor(
    file: Annotated[
        str | None,
        typer.Argument(
            help="An experiment file: whether it could run here too.",
            autocompletion=experiment_files,
        ),
    ] = None,
    home: Annotated[str, typer.Option(help="Ratchet's own folder.")] = ".ratchet",
    runs: RunsFolder = DEFAULT_RUNS,
    store: Annotated[
        str | None, typer.Option(help="The store's folder or URL; that of the home if not given.")
    ] = None,
) -> None:
    """Say what is wrong here, and the command that mends it. Exit code 1 if anything is wrong."""
    prepare_environment(home, make_folders=False)
    places = Places(Path(home), Path(runs), store)
    checks = [*all_checks(places), *(experiment(file) if file else ())]
    print_table("", ("checked", "result", "details"), checks)
    if any(check.verdict is CheckResult.BAD for check in checks):
        raise typer.Exit(1)


def experiment(file: str) -> Iterator[Check]:
    """Check what would keep an experiment from running here."""
    from flows.runs.preflight import find_problems
    from flows.runs.resolving import resolve_file
    from trainers.cautions import find_cautions

    resolved = resolve_file(file)
    problems = list(find_problems(resolved))
    for problem in problems:
        yield Check(file, CheckResult.BAD, str(problem))
    if not problems:
        yield Check(file, CheckResult.GOOD, "could run here")
        for text in find_cautions(resolved.arms, resolved.settings.base_dir):
            yield Check(file, CheckResult.WARNING, text)
