"""``ratchet up``, ``down`` and ``deploy``: execute a module of :mod:`deployments`.

Runs it in a separate process, since flows must not import the higher layer ``deployments``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from flows.cli.completion import experiment_files
from flows.process.messages import print_error, print_plain, prints_json
from flows.process.stack_file import LOOPBACK, POOL
from ratchet.errors import ParameterError

Home = Annotated[str, typer.Option(help="Ratchet's home folder.")]
Port = Annotated[int, typer.Option(help="Preferred port; 0: any free one.", min=0, max=65535)]
Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE|a.b=value",
        help="Experiment files to deploy (default: all deployments of the Prefect file), and"
        " overrides.",
        autocompletion=experiment_files,
    ),
]
_DEFAULT_HOME = ".ratchet"


def up(
    home: Home = _DEFAULT_HOME,
    prefect_port: Port = 4200,
    mlflow_port: Port = 5000,
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
    options = {"prefect_port": prefect_port, "mlflow_port": mlflow_port, "host": host}
    options |= {"worker": worker, "detach": detach}
    _execute("local_stack", {"command": "up", "home": home, **options})


def down(home: Home = _DEFAULT_HOME) -> None:
    """Stop all processes started by `ratchet up`."""
    _execute("local_stack", {"command": "down", "home": home})


def deploy(
    files: Files = None,
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
        Literal["queue", "skip"] | None,
        typer.Option(help="Whether further runs queue (default) or are cancelled (skip)."),
    ] = None,
    home: Home = _DEFAULT_HOME,
    prefect_file: Annotated[
        str | None, typer.Option(help="Prefect file to use instead of the shipped one.")
    ] = None,
    pool: Annotated[str, typer.Option(help="Work pool; created if missing.")] = POOL,
    pool_type: Annotated[
        Literal["process", "docker", "kubernetes"], typer.Option("--type", help="Type of the pool.")
    ] = "process",
) -> None:
    """Register deployments with the Prefect server: forms, schedules."""
    schedule = _given(cron=cron, interval=interval, rrule=rrule, timezone=timezone)
    limits = _given(slots=slots, when_busy=when_busy)
    of_experiments = _given(name=name) | schedule | limits
    if of_experiments and not files:
        options = [f"--{key.replace('_', '-')}={of_experiments[key]}" for key in of_experiments]
        raise ParameterError(f"deploy: got {' '.join(options)}, expected an experiment file too.")
    _execute(
        "deploy",
        {
            "home": home,
            "prefect_file": prefect_file,
            "pool": pool,
            "pool_type": pool_type,
            "arguments": files or [],
            "name": name,
            "schedule": schedule,
            "limits": limits,
        },
    )


def _given(**options: object) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _execute(module: str, options: Mapping[str, object]) -> None:
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", f"deployments.{module}", json.dumps(options)]
    if not prints_json():
        os.execv(sys.executable, command)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for print_part, text in ((print_plain, done.stdout), (print_error, done.stderr)):
        if text.strip():
            print_part(text.strip())
    raise typer.Exit(done.returncode)
