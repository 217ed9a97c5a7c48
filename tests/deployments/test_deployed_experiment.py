"""A deployed experiment: a schedule or a form starts it, it fails, and a retry completes it."""

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

from deployments.deploy import PREFECT_FILE, Schedule, deploy, deploy_experiments
from deployments.local_stack import LocalStack
from deployments.stack_services import csrf_headers, get_text
from flows.runs.verify import verify_run
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.run_folder import RunFolder, list_runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TINY_TRAINER = Path(__file__).parents[1] / "flows" / "tiny_trainer.py"
OVERRIDES = ["rl.lr=0.5", "settings.home=home"]
ONE_RUN = {"MIN_RUNS": "1", "MAX_RUNS": "1", "LOOP_SECONDS": "600"}
"""The scheduler creates no second run while the test waits for the first one."""
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
    """Create a project with an experiment and a trainer whose third training stage fails once."""
    project = folder / "project"
    (project / "experiments").mkdir(parents=True)
    shutil.copy(TINY_TRAINER, project / "experiments")
    (project / "experiments" / "tiny.yaml").write_text(EXPERIMENT)
    (folder / "go_on").touch()
    fault = f"stage=train;iteration=6;kind=raise;once={folder / 'struck'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_FAULT", fault)
        patch.setenv("TINY_LOG", str(folder / "log"))
        for name, value in ONE_RUN.items():
            patch.setenv(f"PREFECT_SERVER_SERVICES_SCHEDULER_{name}", value)
        patch.setenv("TINY_HANG", "train 2")
        patch.setenv("TINY_GO_ON", str(folder / "go_on"))
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
    """Return the scheduled run after its failure; pause the schedule."""
    started = api.wait_for(api.scheduled_run, "RUNNING", "FAILED", "COMPLETED", "CRASHED")
    api.ask(f"deployments/{started['deployment_id']}/pause_deployment", {})
    return api.wait_for(api.scheduled_run, "FAILED", "COMPLETED", "CRASHED")


def soon(prefect_file: Path) -> None:
    """Write the shipped deployments with a different experiment and a short schedule interval."""
    content = yaml.safe_load(PREFECT_FILE.read_text())
    for deployment in content["deployments"]:
        if "file" in deployment.get("parameters", {}):
            deployment["parameters"] = {"file": "experiments/tiny.yaml", "overrides": OVERRIDES}
        if "schedules" in deployment:
            deployment["schedules"] = [{"interval": 15, "timezone": "UTC", "active": True}]
    prefect_file.write_text(yaml.safe_dump(content))


class Api:
    """Client of the Prefect server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def request(self, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        url = f"{self.url}/{path}"
        if body is None:
            return httpx.get(url, timeout=30)
        return httpx.post(url, json=body, headers=csrf_headers(url, None), timeout=30)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        for _ in range(20):
            answer = self.request(path, body)
            if answer.status_code != 503:  # its database is temporarily locked
                return answer.raise_for_status().json() if answer.content else None
            time.sleep(1)
        raise AssertionError(f"{path}: the server remains busy")

    def scheduled_run(self) -> dict[str, Any] | None:
        """Return the run that the schedule has started; None before that."""
        runs = self.ask("flow_runs/filter", {"sort": "EXPECTED_START_TIME_ASC", "limit": 5})
        started = [run for run in runs if run["auto_scheduled"] and run["start_time"]]
        return started[0] if started else None

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
        raise AssertionError(f"the run reached none of {state_types}: {run()}")

    def latest(self, deployment: str) -> dict[str, Any] | None:
        """Return the most recently requested run of a deployment."""
        mine = {"deployments": {"name": {"any_": [deployment]}}}
        runs = self.ask("flow_runs/filter", {**mine, "sort": "EXPECTED_START_TIME_DESC"})
        return runs[0] if runs else None

    def task_states(self, flow_run_id: str) -> dict[str, str]:
        ids = {"flow_runs": {"id": {"any_": [flow_run_id]}}}
        tasks = self.ask("task_runs/filter", {**ids, "sort": "EXPECTED_START_TIME_ASC"})
        return {task["name"]: task["state_name"] for task in tasks}


@pytest.mark.in_turn(2, of="deployments")
def test_schedule_failure_and_retry(
    api: Api, project: Path, folder: Path, failed: dict[str, Any]
) -> None:
    on_demand = api.ask("deployments/name/experiment-from-file/on-demand")
    fields = on_demand["parameter_openapi_schema"]["properties"]
    assert fields["file"]["anyOf"][0]["enum"] == ["experiments/tiny.yaml"]
    deploy_experiments(project / "home", {"own": "experiments/tiny.yaml"}, schedule=Schedule())
    own = api.ask("deployments/name/experiment-from-file/own")
    shown = own["parameter_openapi_schema"]["properties"]["sections"]["properties"]
    assert {"graph_isomorphism", "rl", "agents"} <= shown.keys()
    assert "gymnasium" not in shown
    wrong = {"file": "experiments/tiny.yaml", "sections": {"rl": {"gamma": 2}}}
    create = f"{api.url}/deployments/{own['id']}/create_flow_run"
    assert get_text(create, {"parameters": wrong}) is None, "refused by the server"
    mistyped = {"file": "experiments/tiny.yaml", "overides": ["seed=1"]}
    for deployment in (own, on_demand):
        create = f"deployments/{deployment['id']}/create_flow_run"
        refused = api.request(create, {"parameters": mistyped})
        assert refused.status_code == 409, refused.text
        assert "overides" in refused.text

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
    assert log.read_text().splitlines() == expected, "finished stages must not run again"
    (manifest_file,) = (project / "runs").glob("*/manifest.json")
    manifest = json.loads(manifest_file.read_text())
    assert manifest["status"] == "completed"
    assert manifest["prefect_flow_run_ids"] == [failed["id"]]
    states = api.task_states(failed["id"])
    assert "Cached" in states.values()
    check_page(api, done)


def check_page(api: Api, run: dict[str, Any]) -> None:
    """Check the page of the retried run: name, tags, edges, log, artifacts."""
    assert run["name"] == "tiny rl.lr=0.5"
    assert {"experiment:tiny", "trainer:TinyTrainer"} <= set(run["tags"])
    nodes = [node for _, node in api.ask(f"flow_runs/{run['id']}/graph-v2")["nodes"]]
    roots = [node["label"] for node in nodes if not node["parents"]]
    assert roots == ["build scenario main"] * 2, "one per attempt"
    mine = {"flow_run_id": {"any_": [run["id"]]}}
    found = api.ask("artifacts/filter", {"artifacts": mine})
    kinds = [each["type"] for each in found if each["key"]]  # Prefect's result artifact has no key
    assert sorted(kinds) == ["markdown", "progress", "table"], "once despite two attempts"
    deadline = time.monotonic() + 300  # the log is sent in batches
    while time.monotonic() < deadline:
        log = "\n".join(e["message"] for e in api.ask("logs/filter", {"logs": mine}))
        if "test main test: computed in" in log:
            break
        time.sleep(0.5)
    assert "train main 0-2: computed in" in log
    assert "train main 0-2: found in the store" in log
    assert '"hit"' not in log


class Page:
    """Prefect's UI in a browser."""

    def __init__(self, browser: Any, api: Api) -> None:
        self.browser, self.ui = browser, api.url.removesuffix("/api")

    def open(self, path: str) -> None:
        self.browser.get(f"{self.ui}/{path}")

    def wait(self, seen: Callable[[Any], Any], what: str) -> Any:
        """Wait for an element and return it; the page may re-render elements while waiting."""
        waiting = WebDriverWait(self.browser, 90, ignored_exceptions=[WebDriverException])
        return waiting.until(seen, f"never seen: {what}")

    def find(self, css: str, text: str) -> Any:
        """Wait for an element that is shown and has a text."""

        def shown(browser: Any) -> Any:
            every = browser.find_elements("css selector", css)
            return next((e for e in every if e.is_displayed() and e.text.strip() == text), None)

        return self.wait(shown, f"{css} {text}")

    def wait_for_text(self, text: str) -> None:
        self.wait(lambda b: text in b.find_element("css selector", "body").text, text)

    def press(self, text: str, within: str = "") -> None:
        """Press a button once clickable: a closing overlay may cover it."""

        def pressed(_: Any) -> bool:
            self.find(f"{within} button", text).click()
            return True

        self.wait(pressed, f"a clickable button {text}")

    def choose(self, option: str) -> None:
        """Choose an option: fields are rendered sequentially in arbitrary order."""

        select = f"//select[option[normalize-space()='{option}']]"

        def chosen(browser: Any) -> bool:
            Select(browser.find_element("xpath", select)).select_by_visible_text(option)
            return True

        self.wait(chosen, f"a choice of {option}")

    def type_into(self, field: str, text: str) -> None:
        """Fill in the field that has a label."""
        label = f"//*[normalize-space()='{field} (Optional)']"

        def typed(browser: Any) -> bool:
            browser.find_element("xpath", f"{label}/following::input[1]").send_keys(text)
            return True

        self.wait(typed, f"a field {field}")


def start_by_form(page: Page, api: Api, seed: int) -> str:
    """Fill in and submit the experiment's form; return the id of its flow run."""
    deployment = api.ask("deployments/name/experiment-from-file/on-demand")["id"]
    page.open(f"deployments/deployment/{deployment}/run")
    page.choose("experiments/tiny.yaml")
    page.type_into("seed", str(seed))
    page.press("Submit")
    page.wait(lambda browser: browser.current_url.endswith("?tab=Runs"), "the runs after Submit")
    run = api.latest("on-demand")
    assert run is not None
    assert (run["parameters"]["seed"], run["parameters"]["overrides"]) == (seed, OVERRIDES)
    return str(run["id"])


def begun(project: Path, seed: int, seconds: float = 300.0) -> RunFolder:
    """Wait until the run with a seed has stored two iterations."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for run in list_runs(project / "runs"):
            is_it = run.manifest.seeds == {"main": seed}
            if is_it and any(stage.iteration == 2 for stage in run.manifest.stages):
                return run
        time.sleep(0.3)
    raise AssertionError(f"no run with seed {seed} has started")


@pytest.mark.in_turn(2, of="deployments")
@pytest.mark.browser
@pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs chromium and chromedriver",
)
def test_a_form_is_filled_in_and_its_run_retried_and_cancelled(
    api: Api, project: Path, folder: Path, browser: Any, failed: dict[str, Any]
) -> None:
    assert failed, "the scheduled run has ended"
    page, log = Page(browser, api), folder / "log"
    (folder / "struck").unlink(missing_ok=True)
    log.unlink(missing_ok=True)

    ident = start_by_form(page, api, seed=3)
    first = api.wait_for(lambda: api.ask(f"flow_runs/{ident}"), "FAILED", "COMPLETED", "CRASHED")
    assert first["state_type"] == "FAILED", first["state"]["message"]
    assert log.read_text().splitlines() == [f"train {i}" for i in range(4)]

    page.open(f"runs/flow-run/{ident}")
    page.press("Retry")
    page.press("Retry", within="[role=dialog]")
    done = api.wait_for(lambda: api.ask(f"flow_runs/{ident}"), "COMPLETED", "CRASHED")
    assert (done["state_type"], done["run_count"]) == ("COMPLETED", 2)
    assert log.read_text().splitlines() == [f"train {i}" for i in range(6)] + ["test test"]
    page.find("li", "Artifacts").click()
    run = begun(project, seed=3)
    for kind in ("progress", "results", "summary"):
        page.wait_for_text(f"{run.run_id}-{kind}")

    (folder / "go_on").unlink()
    ident = start_by_form(page, api, seed=4)
    stopped = begun(project, seed=4)
    page.open(f"runs/flow-run/{ident}")
    page.press("Cancel")
    page.press("Confirm", within="[role=dialog]")
    api.wait_for(lambda: api.ask(f"flow_runs/{ident}"), "CANCELLED")
    assert stopped.status == "cancelled"
    settings = ExperimentSettings(home=str(project / "home"), runs=str(project / "runs"))
    assert verify_run(stopped.run_id, settings, remake=False).is_sound
