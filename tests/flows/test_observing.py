"""A stage that fails once and one that hangs, as seen by external observers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.process.checks.base import Installation
from flows.process.checks.runs import stalled_stages
from flows.runs.run_view import view_run
from ratchet.tracking.run_folder import RunFolder

pytestmark = pytest.mark.slow


def soon(look: Callable[[], Any], seconds: float = 300.0) -> Any:
    """Poll until the result is truthy."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.fixture
def client(prefect_server: None) -> Iterator[Any]:
    """Return a client of a server with the automation for stalled stages."""
    from prefect.client.orchestration import get_client

    from deployments.crash_recovery import STALLS, automations

    (wanted,) = (each for each in automations() if each.name == STALLS)
    with get_client(sync_client=True) as client:
        automation = client.create_automation(wanted)
        client.automation = automation
        yield client
        client.delete_automation(automation)


def events(client: Any, prefix: str, resource: str) -> list[dict[str, Any]]:
    """Return the server's events related to a resource, oldest first."""
    related = {"event": {"prefix": [prefix]}, "any_resource": {"id": [resource]}, "order": "ASC"}
    answer = client.request("POST", "/events/filter", json={"limit": 50, "filter": related})
    found: list[dict[str, Any]] = answer.json()["events"]
    return found


def test_stalled_and_retried_stages_are_reported_everywhere(lab: Any, client: Any) -> None:
    go_on = lab.folder / "go on"
    environment = {
        **{"RATCHET_LOG": "json", "TINY_HANG": "train 4", "TINY_GO_ON": str(go_on)},
        "RATCHET_FAULT": f"stage=train;iteration=3;kind=raise;once={lab.folder / 'struck'}",
    }
    settings = lab.settings(stall_seconds=2.0, retries=1, retry_delay_seconds=0, progress="auto")
    process, _ = lab.start(settings=settings, environment=environment)
    try:
        (manifest,) = soon(lambda: list(Path(settings["runs"]).glob("*/manifest.json")))
        run = RunFolder(manifest.parent)
        place = f"ratchet.stage.{run.run_id}.main.train.6"
        soon(lambda: any(s.state == "stalled" for s in view_run(run).stages if s.stage == "train"))
        (check,) = stalled_stages(Installation(Path(settings["home"]), Path(settings["runs"])))
        assert "main train 6 has given no sign of life" in check.details
        assert f"`ratchet cancel {run.run_id}`" in check.details
        shown = CliRunner().invoke(app, ["watch", str(run.path), "--once"]).stdout
        assert "main  train  6  stalled" in shown
        automation = f"prefect.automation.{client.automation}"
        soon(lambda: events(client, "prefect.automation.triggered", automation))
    finally:
        go_on.touch()
        assert process.wait(240) == 0, (lab.folder / "output-1.txt").read_text()

    flow_run = f"prefect.flow-run.{run.manifest.prefect_flow_run_ids[-1]}"
    soon(lambda: events(client, "ratchet.run.completed", flow_run))
    told = events(client, "ratchet.", flow_run)
    counts = Counter(event["event"].removeprefix("ratchet.") for event in told)
    assert counts["stage.computed"] == 9
    assert counts["stage.retried"] == counts["run.started"] == counts["run.completed"] == 1
    stalls = [event for event in told if event["event"] == "ratchet.stage.stalled"]
    (hung,) = (event for event in stalls if event["resource"]["prefect.resource.id"] == place)
    roles = {each["prefect.resource.role"] for each in hung["related"]}
    assert {"run", "flow-run"} <= roles

    lines = [json.loads(line) for line in (lab.folder / "output-1.txt").read_text().splitlines()]
    assert lines == [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    assert {line["run"] for line in lines} == {run.run_id}
    warnings = [(line["stage"], line["iteration"]) for line in lines if "stage" in line]
    assert {("train", 3), ("train", 6)} <= set(warnings)
    kinds = {event["kind"] for event in run.read_events()}
    # the tiny trainer reads environment variables, which is a warning
    assert kinds == {"caution", "retried", "stalled", "warning"}
