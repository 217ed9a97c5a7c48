"""A deployed experiment: a schedule or a form starts it, it fails, a retry does what is left."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.support.ui import Select, WebDriverWait

from deployments.deploying import PREFECT_FILE, deploy
from deployments.local_stack import LocalStack
from deployments.parts import get_text
from ratchet.tracking.run_folder import RunFolder, list_runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TINY_TRAINER = Path(__file__).parents[1] / "flows" / "tiny_trainer.py"
OVERRIDES = ["rl.lr=0.5", "settings.home=home"]
EXPERIMENT = """\
scenario: graph_isomorphism
trainer: {module_path: tiny_trainer.py, class_name: TinyTrainer}
dataset: generated
graph_isomorphism: {num_pairs: 40, graph_sizes: [7, 8, 9]}
rl.num_iterations: 6
settings: {iterations_per_task: 2, retries: 0, home: home}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deployed")


@pytest.fixture(scope="module")
def project(folder: Path) -> Iterator[Path]:
    """A user's folder with an experiment and a trainer; its third stage of training fails once."""
    project = folder / "project"
    (project / "experiments").mkdir(parents=True)
    shutil.copy(TINY_TRAINER, project / "experiments")
    (project / "experiments" / "tiny.yaml").write_text(EXPERIMENT)
    fault = f"stage=train;iteration=6;kind=raise;once={folder / 'struck'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_FAULT", fault)
        patch.setenv("TINY_LOG", str(folder / "log"))
        patch.chdir(project)
        yield project


@pytest.fixture(scope="module")
def api(project: Path, folder: Path) -> Iterator[Api]:
    stack = LocalStack(project / "home")
    stack.start()
    soon(folder / "prefect.yaml")
    deploy(stack.home, folder / "prefect.yaml")
    yield Api(stack.stack.prefect_api_url)
    stack.stop()


@pytest.fixture(scope="module")
def failed(api: Api) -> dict[str, Any]:
    """The run that the schedule has begun, which fails; it begins no other."""
    begun = api.wait_for(api.scheduled_run, "RUNNING", "FAILED", "COMPLETED", "CRASHED")
    api.ask(f"deployments/{begun['deployment_id']}/pause_deployment", {})
    return api.wait_for(api.scheduled_run, "FAILED", "COMPLETED", "CRASHED")


def soon(prefect_file: Path) -> None:
    """Write the deployments that are shipped, for another experiment and in a few seconds."""
    content = yaml.safe_load(PREFECT_FILE.read_text())
    for deployment in content["deployments"]:
        if "file" in deployment.get("parameters", {}):
            deployment["parameters"] = {"file": "experiments/tiny.yaml", "overrides": OVERRIDES}
        if "schedules" in deployment:
            deployment["schedules"] = [{"interval": 15, "timezone": "UTC", "active": True}]
    prefect_file.write_text(yaml.safe_dump(content))


class Api:
    """The few questions that the test asks the Prefect server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        for _ in range(20):
            answer = httpx.request(
                "GET" if body is None else "POST", f"{self.url}/{path}", json=body, timeout=30
            )
            if answer.status_code != 503:  # its database is locked for the moment
                return answer.raise_for_status().json() if answer.content else None
            time.sleep(1)
        raise AssertionError(f"{path}: the server is busy for ever")

    def scheduled_run(self) -> dict[str, Any] | None:
        """Return the run that the schedule has begun, if it has."""
        runs = self.ask("flow_runs/filter", {"sort": "EXPECTED_START_TIME_ASC", "limit": 5})
        begun = [run for run in runs if run["auto_scheduled"] and run["start_time"]]
        return begun[0] if begun else None

    def wait_for(
        self, run: Callable[[], dict[str, Any] | None], *state_types: str, seconds: float = 200.0
    ) -> dict[str, Any]:
        """Wait until a run is in one of some states."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = run()
            if found is not None and found["state_type"] in state_types:
                return found
            time.sleep(0.5)
        raise AssertionError(f"the run came to none of {state_types}: {run()}")

    def latest(self, deployment: str) -> dict[str, Any] | None:
        """Return the run of a deployment that was asked for last."""
        mine = {"deployments": {"name": {"any_": [deployment]}}}
        runs = self.ask("flow_runs/filter", {**mine, "sort": "EXPECTED_START_TIME_DESC"})
        return runs[0] if runs else None

    def task_states(self, flow_run_id: str) -> dict[str, str]:
        ids = {"flow_runs": {"id": {"any_": [flow_run_id]}}}
        tasks = self.ask("task_runs/filter", {**ids, "sort": "EXPECTED_START_TIME_ASC"})
        return {task["name"]: task["state_name"] for task in tasks}


def test_schedule_failure_and_retry(
    api: Api, project: Path, folder: Path, failed: dict[str, Any]
) -> None:
    on_demand = api.ask("deployments/name/experiment-from-file/on-demand")
    fields = on_demand["parameter_openapi_schema"]["properties"]
    assert fields["file"]["anyOf"][0]["enum"] == ["experiments/tiny.yaml"]
    wrong = {"file": "experiments/tiny.yaml", "sections": {"rl": {"gamma": 2}}}
    create = f"{api.url}/deployments/{on_demand['id']}/create_flow_run"
    assert get_text(create, {"parameters": wrong}) is None, "refused by the server"

    log = folder / "log"
    assert failed["state_type"] == "FAILED", failed["state"]["message"]
    assert (folder / "struck").exists()
    assert log.read_text().splitlines() == [f"train {i}" for i in range(4)]

    retry = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "retried by a test"}
    answer = api.ask(f"flow_runs/{failed['id']}/set_state", {"state": retry})
    assert answer["status"] == "ACCEPT"
    done = api.wait_for(api.scheduled_run, "COMPLETED", "CRASHED")
    assert (done["id"], done["run_count"], done["state_type"]) == (failed["id"], 2, "COMPLETED")

    expected = [f"train {i}" for i in range(6)] + ["test test"]
    assert log.read_text().splitlines() == expected, "finished stages are not run again"
    (manifest_file,) = (project / "runs").glob("*/manifest.json")
    manifest = json.loads(manifest_file.read_text())
    assert manifest["status"] == "completed"
    assert manifest["prefect_flow_run_ids"] == [failed["id"]]
    states = api.task_states(failed["id"])
    assert "Cached" in states.values()
    check_page(api, done)


def check_page(api: Api, run: dict[str, Any]) -> None:
    """Check what a person sees of the run that was retried: name, tags, edges, log, artifacts."""
    assert run["name"] == "tiny rl.lr=0.5"
    assert {"experiment:tiny", "trainer:TinyTrainer"} <= set(run["tags"])
    nodes = [node for _, node in api.ask(f"flow_runs/{run['id']}/graph-v2")["nodes"]]
    roots = [node["label"] for node in nodes if not node["parents"]]
    assert roots == ["build scenario main"] * 2, "one for each time that it was tried"
    mine = {"flow_run_id": {"any_": [run["id"]]}}
    found = api.ask("artifacts/filter", {"artifacts": mine})
    kinds = [each["type"] for each in found if each["key"]]  # Prefect's own of the result has none
    assert sorted(kinds) == ["markdown", "progress", "table"], "once, though it was tried twice"
    deadline = time.monotonic() + 30  # the log is sent in batches
    while time.monotonic() < deadline:
        log = "\n".join(e["message"] for e in api.ask("logs/filter", {"logs": mine}))
        if "test main test: made in" in log:
            break
        time.sleep(0.5)
    assert "train main 0-2: made in" in log
    assert "train main 0-2: found in the store" in log
    assert '"hit"' not in log


class Page:
    """Prefect's UI in a browser."""

    def __init__(self, browser: Any, api: Api) -> None:
        self.browser, self.ui = browser, api.url.removesuffix("/api")

    def open(self, path: str) -> None:
        self.browser.get(f"{self.ui}/{path}")

    def find(self, css: str, text: str = "", number: int = -1) -> Any:
        """Wait for the elements that are shown and have a text; return one of them."""

        def shown(browser: Any) -> list[Any]:
            every = browser.find_elements("css selector", css)
            return [e for e in every if e.is_displayed() and (not text or e.text.strip() == text)]

        waiting = WebDriverWait(self.browser, 60, ignored_exceptions=[WebDriverException])
        return waiting.until(shown, f"nothing is shown at {css} {text}")[number]

    def wait_for_text(self, text: str) -> None:
        waiting = WebDriverWait(self.browser, 60)
        waiting.until(lambda b: text in b.find_element("css selector", "body").text, text)

    def press(self, text: str, within: str = "") -> None:
        self.find(f"{within} button", text).click()


def begun(project: Path, seed: int, seconds: float = 200.0) -> RunFolder:
    """Wait until the run with a seed has finished a stage."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for run in list_runs(project / "runs"):
            if run.manifest.seeds == {"main": seed} and run.manifest.stages:
                return run
        time.sleep(0.3)
    raise AssertionError(f"no run with seed {seed} has begun")


@pytest.mark.browser
@pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs chromium and chromedriver",
)
def test_a_form_is_filled_in_and_its_run_retried_and_cancelled(
    api: Api, project: Path, folder: Path, browser: Any, failed: dict[str, Any]
) -> None:
    assert failed, "the one that the schedule began is out of the way"
    page, log = Page(browser, api), folder / "log"
    deployment = api.ask("deployments/name/experiment-from-file/on-demand")["id"]
    (folder / "struck").unlink(missing_ok=True)
    log.unlink(missing_ok=True)

    page.open(f"deployments/deployment/{deployment}/run")
    Select(page.find("select", number=0)).select_by_visible_text("experiments/tiny.yaml")
    page.find("input[type=number]", number=0).send_keys("3")
    page.press("Submit")
    first = api.wait_for(lambda: api.latest("on-demand"), "FAILED", "COMPLETED", "CRASHED")
    assert first["state_type"] == "FAILED", first["state"]["message"]
    assert first["parameters"]["seed"] == 3
    assert log.read_text().splitlines() == [f"train {i}" for i in range(4)]

    page.open(f"runs/flow-run/{first['id']}")
    page.press("Retry")
    page.press("Retry", within="[role=dialog]")
    done = api.wait_for(lambda: api.ask(f"flow_runs/{first['id']}"), "COMPLETED", "CRASHED")
    assert (done["state_type"], done["run_count"]) == ("COMPLETED", 2)
    assert log.read_text().splitlines() == [f"train {i}" for i in range(6)] + ["test test"]
    page.find("li", "Artifacts").click()
    run = begun(project, seed=3)
    for kind in ("progress", "results", "summary"):
        page.wait_for_text(f"{run.run_id}-{kind}")

    slow = {
        "parameters": {"file": "experiments/tiny.yaml", "seed": 4},
        "job_variables": {"env": {"TINY_SECONDS": "5"}},
        "state": {"type": "SCHEDULED"},
    }
    ident = api.ask(f"deployments/{deployment}/create_flow_run", slow)["id"]
    stopped = begun(project, seed=4)
    page.open(f"runs/flow-run/{ident}")
    page.press("Cancel")
    page.press("Confirm", within="[role=dialog]")
    api.wait_for(lambda: api.ask(f"flow_runs/{ident}"), "CANCELLED")
    assert stopped.status == "cancelled"
