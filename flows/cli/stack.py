"""``ratchet up``, ``down`` and ``deploy``: hand over to :mod:`deployments`.

In a process of its own: deployments stand above the flows, so nothing here imports them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated

import typer

from flows.cli.completion import experiment_files
from flows.process.messages import print_error, print_plain, prints_json
from flows.process.stack_file import LOOPBACK, POOL
from ratchet.errors import ParameterError

Home = Annotated[str, typer.Option(help="Ratchet's own folder.")]
_DEFAULT_HOME = ".ratchet"


def up(
    home: Home = _DEFAULT_HOME,
    prefect_port: Annotated[int, typer.Option(help="Wanted port; 0: any free one.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Wanted port; 0: any free one.")] = 5000,
    host: Annotated[
        str, typer.Option(help="Where the servers listen; elsewhere than here they ask who it is.")
    ] = LOOPBACK,
    worker: Annotated[bool, typer.Option(help="Start a worker too.")] = True,
    detach: Annotated[bool, typer.Option("--detach", help="Return when all is up.")] = False,
) -> None:
    """Start a Prefect server, an MLflow server and a worker on this machine."""
    ports = ["--prefect-port", str(prefect_port), "--mlflow-port", str(mlflow_port)]
    place = ["--host", host]
    flags = ([] if worker else ["--no-worker"]) + (["--detach"] if detach else [])
    _hand_over("local_stack", "up", "--home", home, *ports, *place, *flags)


def down(home: Home = _DEFAULT_HOME) -> None:
    """Stop what `ratchet up` has started, and what is left of it."""
    _hand_over("local_stack", "down", "--home", home)


def deploy(
    experiment: Annotated[
        str | None,
        typer.Argument(help="An experiment file to deploy alone.", autocompletion=experiment_files),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[a.b=value]...", help="On top of it.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Its name; the file's by default.")] = None,
    cron: Annotated[str | None, typer.Option(help="When it runs, e.g. '0 3 * * *'.")] = None,
    interval: Annotated[float | None, typer.Option(help="Or every so many seconds.")] = None,
    rrule: Annotated[str | None, typer.Option(help="Or e.g. 'FREQ=DAILY;COUNT=7'.")] = None,
    timezone: Annotated[str | None, typer.Option(help="Of the schedule; UTC by default.")] = None,
    slots: Annotated[
        int | None, typer.Option(help="How many of its runs go at a time; 1 by default.", min=1)
    ] = None,
    home: Home = _DEFAULT_HOME,
    prefect_file: Annotated[str | None, typer.Option(help="Instead of the one shipped.")] = None,
    pool: Annotated[str, typer.Option(help="The work pool; made if there is none.")] = POOL,
    pool_type: Annotated[
        str, typer.Option("--type", help="What its workers start: process, docker or kubernetes.")
    ] = "process",
) -> None:
    """Register deployments with the Prefect server: forms for runs on demand, and schedules."""
    file = ["--prefect-file", prefect_file] if prefect_file else []
    given = {"name": name, "cron": cron, "interval": interval, "rrule": rrule}
    given |= {"timezone": timezone, "slots": None if slots is None else str(slots)}
    options = [f"--{key}={value}" for key, value in given.items() if value is not None]
    if options and experiment is None:
        raise ParameterError(f"deploy: got {' '.join(options)}, expected an experiment file too.")
    options += ["--pool", pool, "--type", pool_type]
    named = [] if experiment is None else ["--", experiment, *(overrides or ())]
    _hand_over("deploying", "--home", home, *file, *options, *named)


def _hand_over(module: str, *arguments: str) -> None:
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", f"deployments.{module}", *arguments]
    if not prints_json():
        os.execv(sys.executable, command)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for print_part, text in ((print_plain, done.stdout), (print_error, done.stderr)):
        if text.strip():
            print_part(text.strip())
    raise typer.Exit(done.returncode)
