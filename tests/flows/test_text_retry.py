"""Prefect's retry of a chat model run, and the resulting metrics and artifacts in MLflow."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def tiny_text_params(lab):
    trainer = {"module_path": "tiny_text_trainer.py", "class_name": "TinyTextTrainer"}
    lab.environment["TINY_SERVICE"] = str(lab.folder / "service")
    text_rl = {"test_scheme": "first_and_last"}
    return lab.hyper_params(
        trainer=trainer, pretrain_agents=False, rl={"num_iterations": 2}, text_rl=text_rl
    )


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("stage=sample_rollouts;iteration=0;after=0.12", marks=pytest.mark.exhaustive),
        "stage=await_fine_tune_jobs;after=0.02",
    ],
)
def test_a_flow_run_retry_pays_once_and_logs_each_point_once(lab, fault):
    from mlflow import MlflowClient

    params = tiny_text_params(lab)
    lab.environment["TINY_SECONDS"] = "0.05"
    lab.kill(fault, params, lab.settings(tracking=True))
    answered = [work for work in lab.done() if work.startswith("call")]
    (path,) = (lab.folder / "runs").glob("*/manifest.json")
    lab.retry(json.loads(path.read_text())["prefect_flow_run_ids"][0])
    assert json.loads(path.read_text())["status"] == "completed"
    paid = Counter(work for work in lab.done() if work.startswith(("call", "job")))
    # The last response may have arrived before the kill without being in the journal.
    assert {work for work, times in paid.items() if times > 1} <= set(answered[-1:])
    client = MlflowClient(f"sqlite:///{lab.folder / 'home' / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    (run,) = client.search_runs([experiment.experiment_id])
    steps = {}
    for key in run.data.metrics:
        points = [point.step for point in client.get_metric_history(run.info.run_id, key)]
        assert len(points) == len(set(points)), key
        steps[key] = sorted(points)
    assert steps["sample_rollouts/calls"] == [0, 1]
    assert steps["test_during_training/accuracy"] == [0, 1]
    assert steps["test/accuracy"] == [2]
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"usage.json", "transcripts"} <= artifacts
    transcripts = {Path(f.path).name for f in client.list_artifacts(run.info.run_id, "transcripts")}
    assert transcripts == {"0.jsonl", "1.jsonl", "test-0.jsonl", "test-1.jsonl", "test.jsonl"}
