"""Models and sweeps in MLflow: each logged once, despite repetitions and kills."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from ratchet.errors import TrackingError
from ratchet.tracking import MlflowMirror, ResultTable, RunFolder, RunManifest
from ratchet.tracking.manifest import StageRecord
from ratchet.tracking.mirrors.mlflow.client import artifact_location, connect, default_tracking_uri
from ratchet.tracking.sweep_folder import SweepMemberRecord, SweepRecord, write_sweep
from trainers.tensordict.states.state import State


@pytest.fixture(scope="module")
def uri(empty_database, tmp_path_factory):
    home = tmp_path_factory.mktemp("mlflow")
    shutil.copy(empty_database, home / "mlflow.db")
    return default_tracking_uri(home)


def new_run(runs, run_id, **changes):
    arms = {"main": {"seed": 1, "rl": {"lr": 0.1}}}
    manifest = RunManifest(run_id=run_id, name=runs.parent.name, arms=arms, **changes)
    return RunFolder.create(runs, manifest)


def killed(*_, **__):
    raise ConnectionError("killed")


def sync_and_fail(uri, folder, client):
    """Sync a run with a client of which one call fails."""
    mirror = MlflowMirror(uri)
    mirror._connected = client
    with pytest.raises(TrackingError, match="killed"):
        mirror.sync(folder)


def models(uri, name):
    client = connect(uri)
    experiment = client.get_experiment_by_name(name)
    return list(client.search_logged_models([experiment.experiment_id]))


@pytest.fixture
def completed(tmp_path):
    """Return a run with a final state, and the state."""
    folder = new_run(tmp_path / "runs", "one")
    state = State(iteration=4, stage="train", agents={"prover": {"weight": torch.rand(2, 3)}})
    state.save(tmp_path / "state")
    folder.record_stages([StageRecord(stage="train", iteration=4, key="0" * 64, hit=False)])
    columns = {"datapoint_id": [0, 1, 2, 3], "y": [0, 1, 0, 1], "decision": [0, 1, 1, 1]}
    folder.write_table(ResultTable("test", columns | {"correct": [1, 1, 0, 1]}))
    folder.update(
        checkpoints={"main": sorted(map(str, (tmp_path / "state").iterdir()))},
        dataset_hashes={"main": {"test": "b" * 64}},
        read_parameters={"main": ["rl.lr"]},
    )
    return folder, state


def test_the_final_agents_are_a_model_that_loads_without_pickle(uri, completed, tmp_path):
    folder, state = completed
    run_id = MlflowMirror(uri).sync(folder)
    name = folder.manifest.name
    assert models(uri, name) == [], "a running run has no final agents"
    folder.set_status("completed")
    for _ in range(2):
        MlflowMirror(uri).sync(folder)
    (folder.path / "mlflow.json").unlink()
    MlflowMirror(uri).sync(folder)
    (model,) = models(uri, name)
    assert model.name == "one-main"
    assert model.source_run_id == run_id
    assert str(model.status) == "READY"
    assert model.tags["ratchet.run_id"] == "one"
    run = connect(uri).get_run(run_id)
    assert [(out.model_id, out.step) for out in run.outputs.model_outputs] == [(model.model_id, 4)]
    place = model.artifact_location.removeprefix("file://")
    assert State.load(f"{place}/state") == state
    (version,) = connect(uri).search_model_versions(f"name = '{name}'")
    newest = connect(uri).get_model_version_by_alias(name, "newest")
    assert version.version == newest.version
    assert version.source == model.artifact_location
    assert {metric.key: metric.value for metric in model.metrics} == {
        "final/test/accuracy": 0.75,
        "final/test/low": pytest.approx(0.3006, abs=1e-4),
        "final/test/high": pytest.approx(0.9544, abs=1e-4),
    }
    assert {metric.step for metric in model.metrics} == {4}
    told = connect(uri).get_metric_history(run_id, "final/test/accuracy")
    assert [(point.step, point.value) for point in told] == [(4, 0.75)], (
        "expected the run's value once"
    )
    assert {(m.dataset_name, m.dataset_digest) for m in model.metrics} == {("test", "b" * 36)}
    assert model.params == {"rl.lr": "0.1"}
    described = yaml.safe_load(Path(place, "MLmodel").read_text())
    assert described["flavors"]["ratchet"]["state"] == "state"
    assert yaml.safe_load(Path(place, "config.yaml").read_text()) == folder.manifest.arms["main"]


@pytest.mark.parametrize(
    "call", ["log_model_artifacts", "create_model_version", "set_registered_model_alias"]
)
def test_a_model_interrupted_by_a_kill_is_completed_and_not_duplicated(
    uri, completed, monkeypatch, call
):
    folder, _ = completed
    folder.set_status("completed")
    client, name = connect(uri), folder.manifest.name
    monkeypatch.setattr(client, call, killed)
    sync_and_fail(uri, folder, client)
    MlflowMirror(uri).sync(folder)
    (model,) = models(uri, name)
    assert str(model.status) == "READY"
    (version,) = connect(uri).search_model_versions(f"name = '{name}'")
    assert version.source == model.artifact_location
    assert connect(uri).get_model_version_by_alias(name, "newest").version == version.version


def test_parameters_interrupted_by_a_kill_are_logged_later(uri, completed, monkeypatch):
    folder, _ = completed
    folder.set_status("completed")
    client = connect(uri)

    def killed(*given, params, own=client.create_logged_model, **named):
        own(
            *given, **named
        )  # servers accept a limited number of parameters; a second request sends the rest
        raise ConnectionError("killed")

    monkeypatch.setattr(client, "create_logged_model", killed)
    sync_and_fail(uri, folder, client)
    MlflowMirror(uri).sync(folder)
    (model,) = models(uri, folder.manifest.name)
    assert model.params == {"rl.lr": "0.1"}


def test_an_older_run_that_is_synced_again_is_not_the_newest(uri, completed):
    folder, _ = completed
    folder.set_status("completed")
    newer = new_run(folder.path.parent, "two", checkpoints=folder.manifest.checkpoints)
    newer.set_status("completed")
    for each in (folder, newer):
        MlflowMirror(uri).sync(each)
    (folder.path / "mlflow.json").unlink()
    MlflowMirror(uri).sync(folder)
    name = folder.manifest.name
    assert len(connect(uri).search_model_versions(f"name = '{name}'")) == 2
    assert connect(uri).get_model_version_by_alias(name, "newest").tags["ratchet.run_id"] == "two"


def test_members_are_children_of_a_run_for_their_sweep(uri, tmp_path):
    runs = tmp_path / "runs"
    members = [SweepMemberRecord(run_id=f"s-{i}", changes={"seed": i}) for i in range(2)]
    record = SweepRecord(
        sweep_id="s", name=tmp_path.name, grid={"seed": [0, 1]}, members=members, command=["x"]
    )
    write_sweep(runs, record)
    client, statuses, parents = connect(uri), [], set()
    for member in members:
        folder = new_run(runs, member.run_id, parent_run_id="s")
        for status in ("running", "completed"):
            folder.set_status(status)
            mine = MlflowMirror(uri).sync(folder)
            parent = client.get_run(mine).data.tags["mlflow.parentRunId"]
            parents.add(parent)
            statuses.append(client.get_run(parent).info.status)
    assert len(parents) == 1
    assert statuses == ["RUNNING", "RUNNING", "RUNNING", "FINISHED"]
    run = client.get_run(parents.pop())
    assert run.info.run_name == "s"
    assert run.data.params == {"seed": "[0, 1]"}
    assert run.data.tags["ratchet.kind"] == "sweep"
    assert [item.path for item in client.list_artifacts(run.info.run_id)] == ["sweep.json"]


@pytest.mark.parametrize("call", ["log_batch", "log_artifact", "set_tag"])
def test_a_sweep_interrupted_by_a_kill_is_completed_later(uri, tmp_path, monkeypatch, call):
    runs = tmp_path / "runs"
    members = [SweepMemberRecord(run_id=f"s-{i}", changes={"seed": i}) for i in range(2)]
    record = SweepRecord(sweep_id="s", name=tmp_path.name, grid={"seed": [0, 1]}, members=members)
    write_sweep(runs, record.model_copy(update={"members": members[:1]}))
    folder, client = new_run(runs, "s-0", parent_run_id="s"), connect(uri)
    monkeypatch.setattr(client, call, killed)
    sync_and_fail(uri, folder, client)
    write_sweep(runs, record)  # a different member is chosen in the meantime
    mine = MlflowMirror(uri).sync(folder)
    client = connect(uri)
    parent = client.get_run(client.get_run(mine).data.tags["mlflow.parentRunId"])
    assert parent.data.params == {"seed": "[0, 1]"}
    told = client.download_artifacts(parent.info.run_id, "sweep.json", str(tmp_path))
    assert Path(told).read_text() == (runs / "s" / "sweep.json").read_text()


def test_a_sweep_with_a_failed_member_has_failed(uri, tmp_path):
    runs = tmp_path / "runs"
    member = SweepMemberRecord(run_id="s-0", changes={})
    write_sweep(
        runs, SweepRecord(sweep_id="s", name=tmp_path.name, grid={"seed": [0]}, members=[member])
    )
    folder = new_run(runs, "s-0", parent_run_id="s")
    folder.set_status("failed", "broken")
    mine = MlflowMirror(uri).sync(folder)
    parent = connect(uri).get_run(mine).data.tags["mlflow.parentRunId"]
    assert connect(uri).get_run(parent).info.status == "FAILED"


def test_an_experiment_shows_the_pages_of_trained_models(uri, tmp_path):
    folder = new_run(tmp_path / "runs", "one", author="ada")
    client = connect(uri)
    guessed = {"mlflow.experimentKind": "genai_development_inferred"}
    place = artifact_location(uri)  # MLflow's own choice would be the working folder
    experiment = client.create_experiment(folder.manifest.name, place, guessed)
    run_id = MlflowMirror(uri).sync(folder)
    tags = client.get_experiment(experiment).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    client.set_experiment_tag(experiment, "mlflow.experimentKind", "finetuning")
    MlflowMirror(uri).sync(folder)
    tags = client.get_experiment(experiment).tags
    assert tags["mlflow.experimentKind"] == "finetuning", "a user's choice must not be replaced"
    tags = client.get_run(run_id).data.tags
    assert tags["mlflow.user"] == "ada"
    assert "seed **1**" in tags["mlflow.note.content"]


def test_only_read_parameters_are_logged(uri, tmp_path):
    folder = new_run(tmp_path / "runs", "one", read_parameters={"main": ["rl.lr"]})
    run_id = MlflowMirror(uri).sync(folder)
    assert connect(uri).get_run(run_id).data.params == {"rl.lr": "0.1"}
    folder.update(read_parameters={"main": ["rl.lr", "seed"]})
    MlflowMirror(uri).sync(folder)
    assert connect(uri).get_run(run_id).data.params == {"rl.lr": "0.1", "seed": "1"}


def test_an_arm_that_has_not_started_has_no_parameters(uri, tmp_path):
    folder = new_run(tmp_path / "runs", "one")
    folder.update(arms={"main": {"seed": 1}, "later": {"seed": 1, "gamma": 0.9}})

    def params():
        MlflowMirror(uri).sync(folder)
        runs = folder.manifest.tracking["runs"]
        return {arm: connect(uri).get_run(runs[arm]).data.params for arm in runs}

    assert params() == {"main": {}, "later": {}}
    folder.update(read_parameters={"main": ["seed"]})
    assert params() == {"main": {"seed": "1"}, "later": {}}
    folder.update(read_parameters={"main": ["seed"], "later": ["seed"]})
    assert params() == {"main": {"seed": "1"}, "later": {"seed": "1"}}


def test_metrics_of_agents_come_first(uri, tmp_path):
    folder = new_run(tmp_path / "runs", "one", dataset_hashes={"main": {"train": "a" * 64}})
    folder.append_metrics("build_scenario", 0, {"num_datapoints/train": 40.0})
    folder.append_metrics("await_fine_tune_jobs", 0, {"cost": 0.0})
    for i in range(2):
        values = {"grad_norm": 1.0, "accuracy": i / 2, "prover.mean_episode_reward": i / 4}
        folder.append_metrics("train", i, values | {"prover.mean_step_reward": 1.0})
        folder.append_metrics("test_during_training", i, {"test_accuracy": i / 3})
    run_id = MlflowMirror(uri).sync(folder)
    run = connect(uri).get_run(run_id)
    sections = sorted({key.rpartition("/")[0] for key in run.data.metrics})
    assert sections == ["agents", "await_fine_tune_jobs", "test_during_training", "train"]
    first = {key: value for key, value in run.data.metrics.items() if key.startswith("agents/")}
    assert first == {
        "agents/accuracy": 0.5,
        "agents/prover reward": 0.25,
        "agents/test accuracy": pytest.approx(1 / 3),
    }
    (entry,) = run.inputs.dataset_inputs
    assert json.loads(entry.dataset.profile) == {"num_rows": 40}
