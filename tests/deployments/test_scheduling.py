"""A deployment of one experiment: its schedule is validated and written to the Prefect file."""

from __future__ import annotations

import pytest
import yaml

from deployments.crash_recovery import AUTOMATION, automations
from deployments.deploy import PREFECT_FILE, Schedule, deployment_file
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
        PREFECT_FILE, "one.yaml", ["seed=1"], name="own", schedule=schedule, slots=2
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
