"""Register the deployments of a Prefect file with the server. ``ratchet deploy`` runs this module.

Runs ``prefect deploy`` in a process of its own, without questions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import yaml

from deployments.local_stack import LocalStackError
from deployments.parts import get_text, stack_environment
from deployments.scheduling import Schedule, deployment_file
from flows.process.logins import PREFECT
from flows.process.messages import print_error, print_plain
from flows.process.stack_file import POOL, running_stack
from ratchet.errors import RatchetError
from ratchet.experiment_files.loading import load_experiment
from ratchet.shadowing import refuse_working_folder
from trainers.registry import TRAINERS

PREFECT_FILE = Path(__file__).with_name("prefect.yaml")
POOL_TYPES = ("process", "docker", "kubernetes")
_IMAGE_FOLDER = "/work"


def deploy(
    home: Path, prefect_file: Path = PREFECT_FILE, pool: str = POOL, pool_type: str = "process"
) -> None:
    """Register all deployments of a file; a second time changes what has changed.

    Parameters
    ----------
    home
        The home of the local stack, used unless ``PREFECT_API_URL`` says otherwise.
    pool, pool_type
        Which workers take the runs, as processes or in containers; made if there is no such pool.

    Raises
    ------
    LocalStackError
        If no server is reachable, Prefect refuses, or the pool is of another type.
    NameClashError
        If packages of the working folder would hide ours from the runs.
    """
    if prefect_file == PREFECT_FILE and pool_type == "process":
        refuse_working_folder(Path.cwd())
    environment = _environment(home.resolve())
    api_url = environment["PREFECT_API_URL"]
    if get_text(f"{api_url}/health") is None:
        raise LocalStackError(f"no Prefect server answers at {api_url}. Start one: `ratchet up`.")
    environment["RATCHET_POOL"] = pool
    if pool_type != "process":  # files lie where the image has them
        environment["RATCHET_PROJECT"] = _IMAGE_FOLDER
    _make_pool(environment, pool, pool_type)
    _prefect(environment, "deploy", "--all", "--prefect-file", str(prefect_file.resolve()))
    _run([sys.executable, "-P", "-m", "deployments.recovering", "--automation"], environment)
    names = [each["name"] for each in yaml.safe_load(prefect_file.read_text())["deployments"]]
    print_plain(f"Registered {', '.join(names)}. See {api_url.removesuffix('/api')}/deployments.")


def deploy_experiment(
    home: Path,
    experiment: str,
    overrides: Sequence[str] = (),
    *,
    name: str,
    schedule: Schedule,
    slots: int = 1,
    pool: str = POOL,
    pool_type: str = "process",
) -> None:
    """Register a deployment of one experiment file, with its schedule; errors as :func:`deploy`.

    Parameters
    ----------
    name
        The deployment's; a second time with the same name changes it.
    slots
        How many of its runs go at a time.

    Raises
    ------
    ParameterError
        If the experiment or the schedule is wrong.
    """
    schedule.check()
    load_experiment(experiment, overrides, {"trainer": TRAINERS})
    refuse_working_folder(Path.cwd())
    text = deployment_file(
        PREFECT_FILE, experiment, overrides, name=name, schedule=schedule, slots=slots
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(text, encoding="utf-8")
        deploy(home, file, pool, pool_type)


def _make_pool(environment: dict[str, str], pool: str, pool_type: str) -> None:
    page = f"{environment['PREFECT_API_URL']}/work_pools/{quote(pool, safe='')}"
    known = get_text(page, login=environment.get(PREFECT))
    if known is None:
        template = Path(__file__).parent / pool_type / "base_job_template.json"
        jobs = ["--base-job-template", str(template)] if template.exists() else []
        _prefect(environment, "work-pool", "create", pool, "--type", pool_type, *jobs)
    elif (its_type := json.loads(known)["type"]) != pool_type:
        raise LocalStackError(
            f"--type: got {pool_type!r}, but the work pool {pool!r} is there already, of type"
            f" {its_type!r}. Name another with `--pool`, or say `--type {its_type}`."
        )


def _environment(home: Path) -> dict[str, str]:
    chosen = os.environ.get("PREFECT_API_URL")
    stack = running_stack(home)
    project = {"RATCHET_PROJECT": str(Path.cwd())}
    if chosen is not None:
        return {**os.environ, **project}
    if stack is None:
        raise LocalStackError(
            f"the local stack of {home} is not up and PREFECT_API_URL is not set."
            " Start it in another terminal: `ratchet up`."
        )
    return {**stack_environment(home, stack), **project}


def _prefect(environment: dict[str, str], *arguments: str) -> None:
    _run([sys.executable, "-P", "-m", "prefect", "--no-prompt", *arguments], environment)


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LocalStackError(
            f"`{' '.join(command)}` failed with exit code {done.returncode}:\n"
            f"{done.stdout}{done.stderr}"
        )


def main(arguments: list[str]) -> int:
    """Deploy; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deployments.deploying")
    parser.add_argument("--home", type=Path, default=Path(".ratchet"))
    parser.add_argument("--prefect-file", type=Path, default=PREFECT_FILE)
    parser.add_argument("--pool", default=POOL)
    parser.add_argument("--type", choices=POOL_TYPES, default="process")
    parser.add_argument("--name")
    parser.add_argument("--cron")
    parser.add_argument("--interval", type=float)
    parser.add_argument("--rrule")
    parser.add_argument("--timezone", default="UTC")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("experiment", nargs="?")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args(arguments)
    try:
        if options.experiment is None:
            deploy(options.home, options.prefect_file, options.pool, options.type)
        else:
            schedule = Schedule(options.cron, options.interval, options.rrule, options.timezone)
            deploy_experiment(
                options.home,
                options.experiment,
                options.overrides,
                name=options.name or Path(options.experiment).stem,
                schedule=schedule,
                slots=options.slots,
                pool=options.pool,
                pool_type=options.type,
            )
    except RatchetError as error:
        print_error(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
