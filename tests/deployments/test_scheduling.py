"""A deployment of one experiment: its schedule is validated and written to the Prefect file."""

from __future__ import annotations

import json

import pytest
import yaml

from deployments import deploy as deploying
from deployments.crash_recovery import AUTOMATION, automations
from deployments.deploy import PREFECT_FILE, Schedule, deployment_file
from deployments.local_stack import LocalStackError
from ratchet.errors import ParameterError


@pytest.mark.parametrize(
    ("given", "entry"),
    [
        ({"cron": "0 3 * * *"}, {"cron": "0 3 * * *"}),
        ({"interval": 3600.0}, {"interval": 3600.0}),
        ({"rrule": "FREQ=DAILY;COUNT=7"}, {"rrule": "FREQ=DAILY;COUNT=7"}),
    ],
    ids=str,
)
def test_a_schedule_is_written_to_the_file(given, entry):
    schedule = Schedule(**given, timezone="Europe/Berlin")
    schedule.check()
    text = deployment_file(
        PREFECT_FILE, {"own": "one.yaml"}, ["seed=1"], schedule=schedule, slots=2
    )
    (deployment,) = yaml.safe_load(text)["deployments"]
    assert deployment["schedules"] == [{**entry, "timezone": "Europe/Berlin", "active": True}]
    assert deployment["parameters"] == {"file": "one.yaml", "overrides": ["seed=1"]}
    assert (deployment["concurrency_limit"], deployment["work_pool"]["name"]) == (
        2,
        "{{ $RATCHET_POOL }}",
    )


def test_a_deployment_without_a_schedule_runs_on_demand():
    Schedule().check()
    assert Schedule().to_entries() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cron": "often"}, r"--cron: got 'often'"),
        ({"rrule": "FREQ=SOMETIMES"}, r"--rrule: got 'FREQ=SOMETIMES'"),
        ({"cron": "0 3 * * *", "interval": 5.0}, r"got --cron and --interval, expected one"),
    ],
    ids=str,
)
def test_an_invalid_schedule_is_refused(given, message):
    with pytest.raises(ParameterError, match=message):
        Schedule(**given).check()


def test_a_paused_run_is_not_treated_as_dead():
    (zombie,) = (each for each in automations() if each.name == AUTOMATION)
    assert {"prefect.flow-run.Paused", "prefect.flow-run.Suspended"} <= set(zombie.trigger.expect)


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
def test_each_file_gets_a_deployment(arguments, experiments, overrides, monkeypatch):
    asked = []
    monkeypatch.setattr(deploying, "deploy_experiments", lambda *given, **_: asked.append(given))
    assert deploying.main(arguments) == 0
    ((_, found, changes),) = asked
    assert (found, changes) == (experiments, overrides)


@pytest.mark.parametrize(
    "arguments", [["a/x.yaml", "b/x.yaml"], ["--name", "y", "a.yaml", "b.yaml"]]
)
def test_two_files_for_one_name_are_refused(arguments, capsys):
    assert deploying.main(arguments) == 2
    assert "one at a time" in capsys.readouterr().err


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
