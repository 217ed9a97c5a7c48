"""Continuing a run with Prefect's retry, and with ``resume`` after a code change."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def manifest(lab):
    (path,) = (lab.folder / "runs").glob("*/manifest.json")
    return json.loads(path.read_text())


def mlflow_points(lab):
    """Count the points of every metric and step in MLflow, except system metrics."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{lab.folder / 'home' / 'mlflow.db'}")
    counts = Counter()
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            for key in (key for key in run.data.metrics if not key.startswith("system/")):
                for point in client.get_metric_history(run.info.run_id, key):
                    counts[key, point.step] += 1
    return counts


@pytest.fixture(scope="module")
def tracked(new_lab):
    """Return the results of an undisturbed tracked run."""
    lab = new_lab()
    result = lab.run(settings=lab.settings(tracking=True))
    return {"lab": lab, "result": result, "points": mlflow_points(lab)}


@pytest.mark.parametrize(
    "fault",
    [
        "stage=train;iteration=6;after=0.12",
        pytest.param("stage=test;after=0.02", marks=pytest.mark.exhaustive),
        pytest.param("stage=save;detail=mlflow;within=2", marks=pytest.mark.exhaustive),
    ],
)
def test_a_flow_run_retry_continues_without_duplicate_metrics(lab, tracked, fault):
    lab.environment = {"TINY_SECONDS": "0.05"}
    settings = lab.settings(tracking=True)
    lab.kill(fault, settings=settings)
    flow_run_id = manifest(lab)["prefect_flow_run_ids"][0]
    before = Counter(lab.done())
    lab.retry(flow_run_id)
    after = manifest(lab)
    assert after["status"] == "completed"
    assert after["prefect_flow_run_ids"] == [flow_run_id]
    assert Counter(lab.done())["train 0"] == before["train 0"] == 1
    result = {"folder": str(lab.folder / "runs" / after["run_id"])}
    assert lab.metrics(result) == tracked["lab"].metrics(tracked["result"])
    state = {"states": tracked["result"]["states"]}
    assert lab.weights(state) == tracked["lab"].weights(tracked["result"])
    points = mlflow_points(lab)
    assert set(points.values()) == {1}
    assert points == tracked["points"]


def test_resume_reuses_finished_stages_after_a_code_change_and_reports_it(lab):
    plugin = lab.folder / "tiny_trainer.py"
    shutil.copy(HERE / "tiny_trainer.py", plugin)
    settings = lab.settings(base_dir=str(lab.folder))
    fault = {"RATCHET_FAULT": "stage=train;iteration=6;kind=raise"}
    lab.run(settings=settings, environment=fault, expect=1)
    run_id = manifest(lab)["run_id"]
    assert manifest(lab)["status"] == "failed"
    assert f"ratchet resume {run_id}" in manifest(lab)["error"]
    plugin.write_text(plugin.read_text().replace("torch.tanh(", "torch.sin("))
    before = len(lab.done())
    lab.run(action="resume", run=run_id, settings=settings, environment=fault, expect=1)
    assert lab.done()[before:] == []
    result = lab.run(action="resume", run=run_id, settings=settings)
    assert result["run_id"] == run_id
    assert lab.done()[before:] == [f"train {i}" for i in range(3, 7)] + ["test test"]
    events = (Path(result["folder"]) / "events.jsonl").read_text()
    assert "tiny_trainer changed" in events
    before = len(lab.done())
    again = lab.run(action="resume", run=run_id, settings=settings)
    assert again["states"] == result["states"]
    assert lab.done()[before:] == []
    lab.run(settings=settings)  # the same command uses the current code
    assert "train 0" in lab.done()[before:]
