"""``ratchet up``, ``down`` and ``deploy``: execute a module of :mod:`deployments`.

Runs it in a separate process, since flows must not import the higher layer ``deployments``.
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

Home = Annotated[str, typer.Option(help="Ratchet's home folder.")]
_DEFAULT_HOME = ".ratchet"


def up(
    home: Home = _DEFAULT_HOME,
    prefect_port: Annotated[int, typer.Option(help="Preferred port; 0: any free one.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Preferred port; 0: any free one.")] = 5000,
    host: Annotated[
        str,
        typer.Option(help="Address of the servers; all except loopback require passwords."),
    ] = LOOPBACK,
    worker: Annotated[bool, typer.Option(help="Also start a worker.")] = True,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; return when it is ready.")
    ] = False,
) -> None:
    """Start a Prefect server, an MLflow server and a worker here."""
    ports = ["--prefect-port", str(prefect_port), "--mlflow-port", str(mlflow_port)]
    flags = ([] if worker else ["--no-worker"]) + (["--detach"] if detach else [])
    _execute("local_stack", "up", "--home", home, *ports, "--host", host, *flags)


def down(home: Home = _DEFAULT_HOME) -> None:
    """Stop all processes started by `ratchet up`."""
    _execute("local_stack", "down", "--home", home)


def deploy(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|a.b=value",
            help="Experiment files to deploy (default: all deployments of the Prefect file), and"
            " overrides.",
            autocompletion=experiment_files,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the deployment (default: the file's).")
    ] = None,
    cron: Annotated[str | None, typer.Option(help="Cron schedule, e.g. '0 3 * * *'.")] = None,
    interval: Annotated[
        float | None, typer.Option(help="Interval of the schedule in seconds.")
    ] = None,
    rrule: Annotated[str | None, typer.Option(help="RRule, e.g. 'FREQ=DAILY;COUNT=7'.")] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Time zone of the schedule (default: UTC).")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(help="Maximum number of concurrent runs (default: 1).", min=1)
    ] = None,
    when_busy: Annotated[
        str | None,
        typer.Option(help="Whether further runs queue (default) or are cancelled: queue or skip."),
    ] = None,
    home: Home = _DEFAULT_HOME,
    prefect_file: Annotated[
        str | None, typer.Option(help="Prefect file to use instead of the shipped one.")
    ] = None,
    pool: Annotated[str, typer.Option(help="Work pool; created if missing.")] = POOL,
    pool_type: Annotated[
        str, typer.Option("--type", help="Type of the pool: process, docker or kubernetes.")
    ] = "process",
) -> None:
    """Register deployments with the Prefect server: forms, schedules."""
    file = ["--prefect-file", prefect_file] if prefect_file else []
    option_values = {"name": name, "cron": cron, "interval": interval, "rrule": rrule}
    option_values |= {"timezone": timezone, "slots": None if slots is None else str(slots)}
    option_values |= {"when-busy": when_busy}
    options = [f"--{key}={value}" for key, value in option_values.items() if value is not None]
    if options and not files:
        raise ParameterError(f"deploy: got {' '.join(options)}, expected an experiment file too.")
    options += ["--pool", pool, "--type", pool_type]
    _execute("deploy", "--home", home, *file, *options, "--", *(files or ()))


def _execute(module: str, *arguments: str) -> None:
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", f"deployments.{module}", *arguments]
    if not prints_json():
        os.execv(sys.executable, command)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for print_part, text in ((print_plain, done.stdout), (print_error, done.stderr)):
        if text.strip():
            print_part(text.strip())
    raise typer.Exit(done.returncode)
