"""A deployment of one experiment: its schedule is validated and written to the Prefect file."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
import typer
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.states import Completed, Pending, Running, Scheduled
from typer.testing import CliRunner

from deployments import deploy as deploying
from deployments.crash_recovery import AUTOMATION, automations
from deployments.deploy import PREFECT_FILE, Schedule, deploy_experiments, deployment_file
from deployments.local_stack import LocalStackError
from flows.cli import stack
from flows.cli.main import app
from flows.process.stack_file import POOL
from ratchet.errors import ParameterError

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "binary_erasure_channel.yaml"


@pytest.mark.parametrize(
    ("given", "entry"),
    [
        ({"cron": "0 3 * * *"}, {"cron": "0 3 * * *"}),
        ({"interval": 3600.0}, {"interval": 3600.0}),
        (
            {"rrule": "FREQ=DAILY;COUNT=7"},
            {"rrule": "DTSTART:20300101T010000\nRRULE:FREQ=DAILY;COUNT=7"},
        ),
    ],
    ids=str,
)
def test_a_schedule_is_written_to_the_file(given, entry):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    schedule = Schedule(**given, timezone="Europe/Berlin", now=now)
    assert len(schedule.next_dates()) == 3
    text = deployment_file(
        PREFECT_FILE, {"own": "one.yaml"}, ["seed=1"], schedule=schedule, slots=2, when_busy="skip"
    )
    (deployment,) = yaml.safe_load(text)["deployments"]
    assert deployment["schedules"] == [{**entry, "timezone": "Europe/Berlin", "active": True}]
    assert deployment["parameters"] == {"file": "one.yaml", "overrides": ["seed=1"]}
    assert (deployment["concurrency_limit"], deployment["work_pool"]["name"]) == (
        {"limit": 2, "collision_strategy": "CANCEL_NEW"},
        "{{ $RATCHET_POOL }}",
    )


@pytest.mark.in_turn(2, of="deployments")
@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_waiting_runs_start_in_the_order_of_their_times(tmp_path, monkeypatch):
    experiment = tmp_path / "one.yaml"
    shutil.copy(EXPERIMENT, experiment)
    monkeypatch.chdir(tmp_path)
    with get_client(sync_client=True) as client:
        monkeypatch.setenv("PREFECT_API_URL", str(client.api_url).rstrip("/"))
        deploy = partial(deploy_experiments, tmp_path, {"one": "one.yaml"}, schedule=Schedule())
        deploy(when_busy="skip")
        assert read_limit(client) == 1
        deploy(slots=2)
        assert read_limit(client) is None
        deploying._limit_queue(dict(os.environ), POOL, "deployment-one", 1)
        deployment = client.read_deployment_by_name("experiment-from-file/one")
        now = datetime.now(UTC)
        waiting = [
            client.create_flow_run_from_deployment(
                deployment.id, state=Scheduled(scheduled_time=now - timedelta(minutes=minutes))
            ).id
            for minutes in (1, 3, 2)
        ]
    started = [asyncio.run(start_next(now)) for _ in waiting]
    assert started == [[waiting[1]], [waiting[2]], [waiting[0]]]


def read_limit(client: SyncPrefectClient) -> int | None:
    limit = client.read_deployment_by_name("experiment-from-file/one").global_concurrency_limit
    return None if limit is None else limit.limit


async def start_next(now: datetime) -> list[UUID]:
    """Start the runs that the server gives to workers; end them when it gives no further one."""

    async def fetch() -> list[UUID]:
        responses = await client.get_scheduled_flow_runs_for_work_pool(POOL, scheduled_before=now)
        return [response.flow_run.id for response in responses]

    async with get_client() as client:
        started = await fetch()
        for state in (Pending(), Running()):
            for run in started:
                await client.set_flow_run_state(run, state)
            assert await fetch() == []
        for run in started:
            await client.set_flow_run_state(run, Completed())
    return started


def test_a_deployment_without_a_schedule_runs_on_demand():
    assert Schedule().next_dates() == []
    assert Schedule().to_entries() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cron": "often"}, r"--cron: got 'often' in 'UTC', expected such as '0 3 \* \* \*'\.$"),
        ({"rrule": "FREQ=SOMETIMES"}, r"--rrule: got 'FREQ=SOMETIMES'"),
        ({"cron": "0 0 3 * * *"}, r"--cron: got '0 0 3 \* \* \*', expected 5 fields"),
        ({"cron": "0 0 31 2 *"}, r"--cron: got '0 0 31 2 \*' in 'UTC', which has no date"),
        ({"rrule": "FREQ=DAILY;COUNT=0"}, "which has no date in the future"),
        ({"interval": -5.0}, r"--interval: got -5\.0"),
        (
            {"cron": "0 3 * * *", "timezone": "Europe/Berlni"},
            r"--timezone: got 'Europe/Berlni', .* Did you mean 'Europe/Berlin'\?",
        ),
        ({"cron": "0 3 * * *", "interval": 5.0}, r"got --cron and --interval, expected one"),
    ],
    ids=str,
)
def test_an_invalid_schedule_is_refused(given, message):
    with pytest.raises(ParameterError, match=message):
        Schedule(**given).next_dates()


def test_the_next_dates_are_in_the_schedules_time_zone():
    dates = Schedule(cron="30 2 * * *", timezone="Asia/Kolkata").next_dates()
    assert [(date.hour, date.minute, str(date.utcoffset())) for date in dates] == [
        (2, 30, "5:30:00")
    ] * 3


def test_a_paused_run_is_not_treated_as_dead():
    (zombie,) = (each for each in automations() if each.name == AUTOMATION)
    assert {"prefect.flow-run.Paused", "prefect.flow-run.Suspended"} <= set(zombie.trigger.expect)


@pytest.fixture
def run_deploy(monkeypatch):
    """Return a function that runs `ratchet deploy` in this process and returns the result."""

    def execute(_, options):
        raise typer.Exit(deploying.main(json.dumps(options)))

    monkeypatch.setattr(stack, "_execute", execute)
    return lambda *arguments: CliRunner().invoke(app, ["deploy", *arguments])


@pytest.mark.parametrize(
    ("arguments", "experiments", "overrides"),
    [
        (
            ["a.yaml", "b/c.yml", "~ppo", "seed=1"],
            {"a": "a.yaml", "c": "b/c.yml"},
            ["~ppo", "seed=1"],
        ),
        (["--name", "x", "a.yaml"], {"x": "a.yaml"}, []),
    ],
)
def test_each_file_gets_a_deployment(arguments, experiments, overrides, run_deploy, monkeypatch):
    asked = []
    monkeypatch.setattr(deploying, "deploy_experiments", lambda *given, **_: asked.append(given))
    assert run_deploy(*arguments).exit_code == 0
    ((_, found, changes),) = asked
    assert (found, changes) == (experiments, overrides)


def test_options_of_deployments_have_the_defaults_of_the_functions(run_deploy, monkeypatch):
    calls = []
    monkeypatch.setattr(deploying, "deploy_experiments", lambda *_, **given: calls.append(given))
    monkeypatch.setattr(deploying, "deploy", lambda *given, **_: calls.append(given))
    run_deploy("a.yaml", "--type", "docker")
    run_deploy("a.yaml", "--cron", "0 3 * * *", "--slots", "2", "--when-busy", "skip")
    run_deploy("--home", "h", "--prefect-file", "p.yaml")
    run_deploy()
    pool = {"pool": "ratchet", "pool_type": "process"}
    assert calls == [
        {**pool, "schedule": Schedule(), "pool_type": "docker"},
        {**pool, "schedule": Schedule("0 3 * * *"), "slots": 2, "when_busy": "skip"},
        (Path("h"), Path("p.yaml")),
        (Path(".ratchet"), PREFECT_FILE),
    ]


@pytest.mark.parametrize(
    "arguments", [["a/x.yaml", "b/x.yaml"], ["--name", "y", "a.yaml", "b.yaml"]]
)
def test_two_files_for_one_name_are_refused(arguments, run_deploy):
    result = run_deploy(*arguments)
    assert result.exit_code == 2
    assert "one at a time" in result.stderr


@pytest.mark.parametrize("accepts", [True, False])
def test_the_form_of_a_file_replaces_that_of_any_file(accepts, monkeypatch):
    found = {"id": "1", "parameters": {"file": "x.yaml"}, "parameter_openapi_schema": {"of": "any"}}
    sent = []

    def server(url, body=None, login=None, method=None):
        if body is None:
            return json.dumps(found) if url.endswith("/name/experiment-from-file/my%20x") else None
        sent.append((url, body, login, method))
        return "" if accepts else None

    monkeypatch.setattr(deploying, "get_text", server)
    monkeypatch.setattr(deploying, "experiment_form", lambda *given: {"form": given})
    environment = {"PREFECT_API_URL": "http://server/api", deploying.PREFECT_AUTH: "me:x"}
    if accepts:
        deploying._register_form(environment, "my x", "experiment")
    else:
        with pytest.raises(LocalStackError, match=r"did not accept the form .* 'my x'"):
            deploying._register_form(environment, "my x", "experiment")
    form = {"form": ("experiment", "x.yaml", {"of": "any"})}
    expected = {"parameter_openapi_schema": form}
    assert sent == [("http://server/api/deployments/1", expected, "me:x", "PATCH")]
