"""Register the deployments of a Prefect file with the server. ``ratchet deploy`` runs this module.

Runs ``prefect deploy`` in a separate process, without prompts. Deployments of experiment files use
the shipped Prefect file with these deployments instead of the listed ones, and a form of the
parameters that the file reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import dropwhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo, available_timezones

import yaml

from deployments.local_stack import LocalStackError
from deployments.stack_services import get_text, stack_environment
from flows.experiment_form import experiment_form
from flows.process.heartbeats import HEARTBEAT_VARIABLES
from flows.process.messages import print_error, print_plain
from flows.process.stack_file import POOL, PREFECT_AUTH, running_stack
from ratchet.errors import ParameterError, RatchetError, nearest
from ratchet.experiment_files.loading import ExperimentFile, load_experiment
from ratchet.shadowing import refuse_working_folder
from trainers.registry import TRAINERS

PREFECT_FILE = Path(__file__).with_name("prefect.yaml")
ENTRYPOINT = "flows.deployed.experiment_from_file"
_CRON_FIELDS, _SHOWN_DATES = 5, 3
_EXAMPLES = {"cron": "'0 3 * * *'", "interval": "3600 (seconds)", "rrule": "'FREQ=DAILY;COUNT=7'"}


@dataclass(frozen=True)
class Schedule:
    """Schedule of a deployment: one of three forms, or none."""

    cron: str | None = None
    interval: float | None = None
    rrule: str | None = None
    timezone: str = "UTC"
    now: datetime = field(default_factory=lambda: datetime.now(UTC), compare=False)

    def next_dates(self) -> list[datetime]:
        """Return the next dates, three at most; none without a schedule."""
        expressions = {
            name: value
            for name in ("cron", "interval", "rrule")
            if (value := getattr(self, name)) is not None
        }
        if len(expressions) > 1:
            raise ParameterError(
                f"schedule: got --{' and --'.join(expressions)}, expected one of them. Deploy the"
                " experiment twice, under two names."
            )
        if self.timezone not in available_timezones():
            raise ParameterError(
                f"--timezone: got {self.timezone!r}, expected a name such as Europe/Berlin."
                f"{nearest(self.timezone, available_timezones())}"
            )
        for name, value in expressions.items():
            got = f"--{name}: got {value!r}"
            if name == "cron" and len(str(value).split()) > _CRON_FIELDS:
                raise ParameterError(
                    f"{got}, expected {_CRON_FIELDS} fields: minute, hour, day of the month, month,"
                    f" day of the week, such as {_EXAMPLES['cron']}. Seconds cannot be set."
                )
            try:
                dates = self._dates(name)
            except ValueError as error:
                raise ParameterError(
                    f"{got} in {self.timezone!r}, expected such as {_EXAMPLES[name]}."
                ) from error
            if not dates:
                raise ParameterError(
                    f"{got} in {self.timezone!r}, which has no date in the future; expected such as"
                    f" {_EXAMPLES[name]}."
                )
            return dates
        return []

    def _dates(self, form: str) -> list[datetime]:
        # a module of Prefect's server, which takes seconds
        from prefect._vendor.croniter.croniter import CroniterBadDateError
        from prefect.server.schemas.schedules import (
            CronSchedule,
            IntervalSchedule,
            RRuleSchedule,
        )

        schedule: CronSchedule | IntervalSchedule | RRuleSchedule
        match form:
            case "cron":
                schedule = CronSchedule(cron=self.cron or "", timezone=self.timezone)
            case "interval":
                period = timedelta(seconds=self.interval or 0)
                schedule = IntervalSchedule(interval=period, timezone=self.timezone)
            case _:
                schedule = RRuleSchedule(rrule=str(self._forms["rrule"]), timezone=self.timezone)
        try:
            return list(asyncio.run(schedule.get_dates(_SHOWN_DATES)))
        except CroniterBadDateError:  # e.g. the 31st of February
            return []

    @property
    def _forms(self) -> dict[str, str | float | None]:
        rrule = self.rrule
        if rrule is not None and "COUNT" in rrule and "DTSTART" not in rrule:
            # otherwise Prefect counts from 2020
            start = f"{self.now.astimezone(ZoneInfo(self.timezone)):%Y%m%dT%H%M%S}"
            rrule = f"DTSTART:{start}\nRRULE:{rrule.removeprefix('RRULE:')}"
        return {"cron": self.cron, "interval": self.interval, "rrule": rrule}

    def to_entries(self) -> list[dict[str, Any]]:
        """Return the ``schedules`` entries for a Prefect file; an empty list without a schedule."""
        expressions = {name: value for name, value in self._forms.items() if value is not None}
        return [{**expressions, "timezone": self.timezone, "active": True}] if expressions else []


def queue_name(deployment: str) -> str:
    """Return the name of a deployment's work queue, distinct from the pool's queue ``default``."""
    return f"deployment-{deployment}"


def deployment_file(
    shipped: Path,
    experiments: Mapping[str, str],
    overrides: Sequence[str],
    *,
    schedule: Schedule,
    slots: int,
    when_busy: str = "queue",
) -> str:
    """Return the Prefect file of the deployments of single experiments.

    Parameters
    ----------
    shipped
        The file from which the work pool and the working folder are copied.
    experiments
        Name of the deployment → experiment file.
    slots
        Maximum number of concurrent runs of each.
    when_busy
        Whether further runs ``queue``, or are cancelled: ``skip``. Runs wait in a work queue of the
        deployment, which starts them in order; a deployment's own limit would start any of them.
    """
    content = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    pool = content["definitions"]["pool"]
    limits: dict[str, Any] = {}
    if when_busy == "skip":
        limits = {"concurrency_limit": {"limit": slots, "collision_strategy": "CANCEL_NEW"}}
    content["deployments"] = [
        {
            "name": name,
            "description": f"Run {experiment} {' '.join(overrides)}".strip() + ".",
            "entrypoint": ENTRYPOINT,
            "parameters": {"file": experiment, "overrides": list(overrides)},
            "enforce_parameter_schema": True,
            "work_pool": {
                **pool,
                "work_queue_name": queue_name(name) if when_busy == "queue" else "default",
            },
            **limits,
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
    queues: Mapping[str, int] | None = None,
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
    queues
        Work queue of the pool → maximum number of its concurrent runs; created if missing.
    """
    if prefect_file == PREFECT_FILE and pool_type == "process":
        refuse_working_folder(Path.cwd())
    environment = _environment(home.resolve())
    api_url = environment["PREFECT_API_URL"]
    if get_text(f"{api_url}/health") is None:
        raise LocalStackError(f"no response from a Prefect server at {api_url}. Run `ratchet up`.")
    environment |= {"RATCHET_POOL": pool, **HEARTBEAT_VARIABLES}
    if pool_type != "process":  # location of the files in the image
        environment["RATCHET_PROJECT"] = "/work"
    _create_pool(environment, pool, pool_type)
    for name, slots in (queues or {}).items():
        _limit_queue(environment, pool, name, slots)
    names = [each["name"] for each in yaml.safe_load(prefect_file.read_text())["deployments"]]
    noun = "deployment" if len(names) == 1 else "deployments"
    print_plain(f"Registering {len(names)} {noun} at {api_url}.")
    _prefect(environment, "deploy", "--all", "--prefect-file", str(prefect_file.resolve()))
    for name, experiment in (experiments or {}).items():
        _register_form(environment, name, experiment)
    _close_forms(environment, names)
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
    when_busy: str = "queue",
    pool: str = POOL,
    pool_type: str = "process",
) -> None:
    """Register a deployment of each experiment file with a schedule; errors as :func:`deploy`.

    Parameters
    ----------
    experiments
        Name of the deployment → file; existing deployments with these names are updated.
    slots, when_busy
        As for :func:`deployment_file`.
    """
    print_plain(f"Checking {', '.join(experiments.values())}.")
    dates = schedule.next_dates()
    loaded = {
        name: load_experiment(file, overrides, {"trainer": TRAINERS})
        for name, file in experiments.items()
    }
    refuse_working_folder(Path.cwd())
    text = deployment_file(
        PREFECT_FILE, experiments, overrides, schedule=schedule, slots=slots, when_busy=when_busy
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(text, encoding="utf-8")
        queues = dict.fromkeys(map(queue_name, experiments), slots) if when_busy == "queue" else {}
        deploy(home, file, pool, pool_type, loaded, queues)
    if dates:
        formatted_dates = ", ".join(f"{date:%Y-%m-%d %H:%M:%S}" for date in dates)
        print_plain(f"Next runs ({schedule.timezone}): {formatted_dates}.")


def _register_form(environment: dict[str, str], name: str, experiment: ExperimentFile) -> None:
    """Replace the form of all files, which ``prefect deploy`` has registered, by that of one."""
    api_url, login = environment["PREFECT_API_URL"], environment.get(PREFECT_AUTH)
    path = quote(f"experiment-from-file/{name}")
    deployment = json.loads(get_text(f"{api_url}/deployments/name/{path}", login=login) or "{}")
    if deployment:
        file, general = deployment["parameters"]["file"], deployment["parameter_openapi_schema"]
        form = {"parameter_openapi_schema": experiment_form(experiment, file, general)}
        if get_text(f"{api_url}/deployments/{deployment['id']}", form, login, "PATCH") is not None:
            return
    raise _refused_form(api_url, name)


def _refused_form(api_url: str, name: str) -> LocalStackError:
    return LocalStackError(
        f"the server at {api_url} did not accept the form of the deployment {name!r}. Read its log,"
        " and run the command again."
    )


def _close_forms(environment: dict[str, str], names: Sequence[str]) -> None:
    """Let the server refuse parameters that no field of the forms has, such as mistyped ones."""
    api_url, login = environment["PREFECT_API_URL"], environment.get(PREFECT_AUTH)
    mine = {"deployments": {"name": {"any_": list(names)}}}
    for deployment in json.loads(get_text(f"{api_url}/deployments/filter", mine, login) or "[]"):
        if str(deployment["entrypoint"]).startswith("flows."):
            schema = {**deployment["parameter_openapi_schema"], "additionalProperties": False}
            form = {"parameter_openapi_schema": schema}
            if get_text(f"{api_url}/deployments/{deployment['id']}", form, login, "PATCH") is None:
                raise _refused_form(api_url, deployment["name"])


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


def _limit_queue(environment: dict[str, str], pool: str, name: str, slots: int) -> None:
    """Create a work queue, or update it, so that a worker starts at most ``slots`` of its runs."""
    api_url, login = environment["PREFECT_API_URL"], environment.get(PREFECT_AUTH)
    queues = f"{api_url}/work_pools/{quote(pool, safe='')}/queues"
    limit: dict[str, object] = {"concurrency_limit": slots}
    if get_text(f"{queues}/{quote(name, safe='')}", limit, login, "PATCH") is not None:
        return
    if get_text(queues, {"name": name, **limit}, login) is None:
        raise LocalStackError(
            f"the server at {api_url} did not create the work queue {name!r} of the pool {pool!r}."
            " Read its log, and run the command again."
        )


def _environment(home: Path) -> dict[str, str]:
    stack = running_stack(home)
    project = {"RATCHET_PROJECT": str(Path.cwd())}
    api_url = os.environ.get("PREFECT_API_URL")
    if api_url is not None:
        return {**os.environ, **project, "PREFECT_API_URL": api_url.rstrip("/")}
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


def main(text: str) -> int:
    """Deploy with options in JSON; return the exit code.

    ``arguments`` are experiment files, then overrides; without any, all deployments of
    ``prefect_file`` are registered. ``schedule`` and ``limits`` are of experiment files.
    """
    options = json.loads(text)
    home, arguments = Path(options["home"]), options["arguments"]
    pool = {"pool": options["pool"], "pool_type": options["pool_type"]}
    overrides = list(dropwhile(lambda each: "=" not in each and each[:1] != "~", arguments))
    files = arguments[: len(arguments) - len(overrides)]
    try:
        if not arguments:
            deploy(home, Path(options["prefect_file"] or PREFECT_FILE), **pool)
        else:
            deploy_experiments(
                home,
                _named(files, options["name"]),
                overrides,
                schedule=Schedule(**options["schedule"]),
                **options["limits"],
                **pool,
            )
    except RatchetError as error:
        print_error(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
