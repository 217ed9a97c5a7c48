"""Register the deployments of a Prefect file with the server. ``ratchet deploy`` runs this module.

Runs ``prefect deploy`` in a separate process, without prompts. Deployments of experiment files use
the shipped Prefect file with these deployments instead of the listed ones, and a form of the
parameters that the file reads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import yaml

from deployments.local_stack import LocalStackError
from deployments.stack_services import get_text, stack_environment
from flows.experiment_form import experiment_form
from flows.process.messages import print_error, print_plain
from flows.process.stack_file import POOL, PREFECT_AUTH, running_stack
from ratchet.errors import ParameterError, RatchetError
from ratchet.experiment_files.loading import ExperimentFile, load_experiment
from ratchet.shadowing import refuse_working_folder
from trainers.registry import TRAINERS

PREFECT_FILE = Path(__file__).with_name("prefect.yaml")
FLOW = "experiment-from-file"
ENTRYPOINT = "flows.deployed.experiment_from_file"
POOL_TYPES = ("process", "docker", "kubernetes")
_IMAGE_FOLDER = "/work"
_EXAMPLES = {"cron": "'0 3 * * *'", "interval": "3600 (seconds)", "rrule": "'FREQ=DAILY;COUNT=7'"}


@dataclass(frozen=True)
class Schedule:
    """Schedule of a deployment: one of three forms, or none."""

    cron: str | None = None
    interval: float | None = None
    rrule: str | None = None
    timezone: str = "UTC"

    def check(self) -> None:
        """Refuse a schedule in more than one form, or with an invalid value.

        Raises
        ------
        ParameterError
            With the value and the expected form.
        """
        given = [name for name in ("cron", "interval", "rrule") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ParameterError(
                f"schedule: got --{' and --'.join(given)}, expected one of them. Deploy the"
                " experiment twice, under two names."
            )
        from prefect.schedules import Cron, Interval, RRule

        makers: dict[str, Callable[..., object]] = {
            "cron": Cron,
            "interval": Interval,
            "rrule": RRule,
        }
        for name in given:
            try:
                makers[name](getattr(self, name), timezone=self.timezone)
            except ValueError as error:
                raise ParameterError(
                    f"--{name}: got {getattr(self, name)!r} in {self.timezone!r}, expected such as"
                    f" {_EXAMPLES[name]} ({error})."
                ) from error

    def to_entries(self) -> list[dict[str, Any]]:
        """Return the ``schedules`` entries for a Prefect file; an empty list without a schedule."""
        values = {"cron": self.cron, "interval": self.interval, "rrule": self.rrule}
        given = {name: value for name, value in values.items() if value is not None}
        return [{**given, "timezone": self.timezone, "active": True}] if given else []


def deployment_file(
    shipped: Path,
    experiments: Mapping[str, str],
    overrides: Sequence[str],
    *,
    schedule: Schedule,
    slots: int,
) -> str:
    """Return the Prefect file of the deployments of single experiments.

    Parameters
    ----------
    shipped
        The file from which the work pool and the working folder are copied.
    experiments
        Name of the deployment → experiment file.
    slots
        Maximum number of concurrent runs of each; further ones wait.
    """
    content = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    content["deployments"] = [
        {
            "name": name,
            "description": f"Run {experiment} {' '.join(overrides)}".strip() + ".",
            "entrypoint": ENTRYPOINT,
            "parameters": {"file": experiment, "overrides": list(overrides)},
            "enforce_parameter_schema": True,
            "work_pool": content["definitions"]["pool"],
            "concurrency_limit": slots,
            "schedules": schedule.to_entries(),
        }
        for name, experiment in experiments.items()
    ]
    return yaml.safe_dump(content, sort_keys=False)


def deploy(
    home: Path,
    prefect_file: Path = PREFECT_FILE,
    pool: str = POOL,
    pool_type: str = "process",
    experiments: Mapping[str, ExperimentFile] | None = None,
) -> None:
    """Register all deployments of a file; update those that exist.

    Parameters
    ----------
    home
        The home of the local stack, used unless ``PREFECT_API_URL`` is set.
    pool, pool_type
        The work pool of the runs, which run as processes or in containers; created if missing.
    experiments
        Name of the deployment of a single experiment → its file.

    Raises
    ------
    LocalStackError
        If no server is reachable, Prefect reports an error, or the pool has a different type.
    NameClashError
        If packages in the working folder would shadow Ratchet's in the runs.
    """
    if prefect_file == PREFECT_FILE and pool_type == "process":
        refuse_working_folder(Path.cwd())
    environment = _environment(home.resolve())
    api_url = environment["PREFECT_API_URL"]
    if get_text(f"{api_url}/health") is None:
        raise LocalStackError(f"no response from a Prefect server at {api_url}. Run `ratchet up`.")
    environment["RATCHET_POOL"] = pool
    if pool_type != "process":  # location of the files in the image
        environment["RATCHET_PROJECT"] = _IMAGE_FOLDER
    _create_pool(environment, pool, pool_type)
    names = [each["name"] for each in yaml.safe_load(prefect_file.read_text())["deployments"]]
    noun = "deployment" if len(names) == 1 else "deployments"
    print_plain(f"Registering {len(names)} {noun} at {api_url}.")
    _prefect(environment, "deploy", "--all", "--prefect-file", str(prefect_file.resolve()))
    for name, experiment in (experiments or {}).items():
        _register_form(environment, name, experiment)
    print_plain("Registering the automation that marks killed runs as crashed.")
    _run([sys.executable, "-P", "-m", "deployments.crash_recovery", "--automation"], environment)
    print_plain(f"Registered {', '.join(names)}. See {api_url.removesuffix('/api')}/deployments.")


def deploy_experiments(
    home: Path,
    experiments: Mapping[str, str],
    overrides: Sequence[str] = (),
    *,
    schedule: Schedule,
    slots: int = 1,
    pool: str = POOL,
    pool_type: str = "process",
) -> None:
    """Register a deployment of each experiment file with a schedule; errors as :func:`deploy`.

    Parameters
    ----------
    experiments
        Name of the deployment → file; existing deployments with these names are updated.
    slots
        Maximum number of concurrent runs of each.

    Raises
    ------
    ParameterError
        If an experiment or the schedule is invalid.
    """
    print_plain(f"Checking {', '.join(experiments.values())}.")
    schedule.check()
    loaded = {
        name: load_experiment(file, overrides, {"trainer": TRAINERS})
        for name, file in experiments.items()
    }
    refuse_working_folder(Path.cwd())
    text = deployment_file(PREFECT_FILE, experiments, overrides, schedule=schedule, slots=slots)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(text, encoding="utf-8")
        deploy(home, file, pool, pool_type, loaded)


def _register_form(environment: dict[str, str], name: str, experiment: ExperimentFile) -> None:
    """Replace the form of all files, which ``prefect deploy`` has registered, by that of one."""
    api_url, login = environment["PREFECT_API_URL"], environment.get(PREFECT_AUTH)
    path = quote(f"{FLOW}/{name}")
    found = json.loads(get_text(f"{api_url}/deployments/name/{path}", login=login) or "{}")
    if found:
        file, general = found["parameters"]["file"], found["parameter_openapi_schema"]
        form = {"parameter_openapi_schema": experiment_form(experiment, file, general)}
        if get_text(f"{api_url}/deployments/{found['id']}", form, login, "PATCH") is not None:
            return
    raise LocalStackError(
        f"the server at {api_url} did not accept the form of the deployment {name!r}. Read its log,"
        " and run the command again."
    )


def _is_file(argument: str) -> bool:
    return "=" not in argument and not argument.startswith("~")


def _named(files: Sequence[str], name: str | None) -> dict[str, str]:
    """Return the files by name of their deployments: the given one, or the file's."""
    names = [name or Path(file).stem for file in files]
    if len(set(names)) < len(names):
        raise ParameterError(
            f"deploy: got {', '.join(files)} for deployments {', '.join(names)}, expected different"
            " names. Deploy the files one at a time, with --name."
        )
    return dict(zip(names, files, strict=True))


def _create_pool(environment: dict[str, str], pool: str, pool_type: str) -> None:
    page = f"{environment['PREFECT_API_URL']}/work_pools/{quote(pool, safe='')}"
    existing = get_text(page, login=environment.get(PREFECT_AUTH))
    if existing is None:
        print_plain(f"Creating the work pool {pool!r}.")
        template = Path(__file__).parent / pool_type / "base_job_template.json"
        jobs = ["--base-job-template", str(template)] if template.exists() else []
        _prefect(environment, "work-pool", "create", pool, "--type", pool_type, *jobs)
    elif (existing_type := json.loads(existing)["type"]) != pool_type:
        raise LocalStackError(
            f"--type: got {pool_type!r}, but the work pool {pool!r} exists with type"
            f" {existing_type!r}. Choose another pool with `--pool`, or pass"
            f" `--type {existing_type}`."
        )


def _environment(home: Path) -> dict[str, str]:
    stack = running_stack(home)
    project = {"RATCHET_PROJECT": str(Path.cwd())}
    if os.environ.get("PREFECT_API_URL") is not None:
        return {**os.environ, **project}
    if stack is None:
        raise LocalStackError(
            f"the local stack of {home} is not running and PREFECT_API_URL is not set."
            " Start the stack in a second terminal: `ratchet up`."
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
    parser = argparse.ArgumentParser(prog="python -m deployments.deploy")
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
    parser.add_argument("arguments", nargs="*", help="experiment files, then overrides")
    options = parser.parse_args(arguments)
    overrides = list(dropwhile(_is_file, options.arguments))
    files = options.arguments[: len(options.arguments) - len(overrides)]
    try:
        if not options.arguments:
            deploy(options.home, options.prefect_file, options.pool, options.type)
        else:
            schedule = Schedule(options.cron, options.interval, options.rrule, options.timezone)
            deploy_experiments(
                options.home,
                _named(files, options.name),
                overrides,
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
