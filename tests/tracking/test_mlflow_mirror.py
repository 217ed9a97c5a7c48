"""The MLflow mirror sends each point once, despite repetitions, losses and kills."""

import getpass
import json
import math
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from ratchet.errors import TrackingError
from ratchet.tracking import (
    MetricPoint,
    MlflowMirror,
    ResultTable,
    RunFolder,
    RunManifest,
)
from ratchet.tracking.environment import CodeState, command_line
from ratchet.tracking.manifest import StageRecord
from ratchet.tracking.mirrors.mlflow.arm import ArmMirror
from ratchet.tracking.mirrors.mlflow.client import connect, default_tracking_uri, run_url
from ratchet.tracking.mirrors.mlflow.sweep import BestMember
from ratchet.tracking.mirrors.payload import flatten, metric_key, run_params
from ratchet.tracking.run_lock import RunLock
from ratchet.tracking.sweep_folder import SweepMemberRecord, SweepRecord, write_sweep

COLUMNS = {
    "datapoint_id": [0, 1, 2, 3],
    "y": [0, 1, 0, 1],
    "decision": [0, 1, 1, 1],
    "correct": [1, 1, 0, 1],
}


@pytest.fixture
def uri(empty_database, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(empty_database, home / "mlflow.db")
    return default_tracking_uri(home)


@pytest.fixture
def folder(tmp_path):
    manifest = RunManifest(
        run_id="nip-1234abcd",
        name="nip",
        arms={
            "main": {"seed": 1, "rl": {"lr": 0.1, "sizes": [1, 2]}},
            "alone": {"seed": 1, "rl": {"lr": 0.2, "sizes": []}},
        },
        settings={"tags": {"paper": "draft 2"}},
        code=CodeState(commit="c0ffee", dirty=True),
        dataset_hashes={
            "main": {"train": "a" * 64, "test": "b" * 64},
            "alone": {"train": "c" * 64, "test": "b" * 64},
        },
        fork_parent="nip-older",
        prefect_flow_run_ids=["f1", "f2"],
    )
    folder = RunFolder.create(tmp_path / "runs", manifest)
    record(folder, 0, 3)
    return folder


def record(folder, start, stop):
    for arm in ("main", "alone"):
        folder.append_points(
            [
                MetricPoint("train", i, {"loss": i / 3, "kl": 1.0 * i}, arm)
                for i in range(start, stop)
            ]
        )


def history(uri, run_id, key):
    return [(p.step, p.value) for p in connect(uri).get_metric_history(run_id, key)]


def active_runs(uri):
    client = connect(uri)
    return client.search_runs([client.get_experiment_by_name("nip").experiment_id])


def check_each_point_once(uri, folder, num_iterations):
    runs = {run.data.tags["ratchet.arm"]: run for run in active_runs(uri)}
    assert sorted(runs) == ["alone", "main"]
    assert len(active_runs(uri)) == 2
    for run in runs.values():
        expected = [(i, pytest.approx(i / 3)) for i in range(num_iterations)]
        assert sorted(history(uri, run.info.run_id, "train/loss")) == expected
        assert len(history(uri, run.info.run_id, "train/kl")) == num_iterations
    return runs


def test_a_retest_that_is_synced_between_its_tests_has_results_of_each_state(uri, folder):
    runs = set()
    for iteration, right in ((5, 1), (6, 0)):
        columns = {"datapoint_id": [0, 1], "y": [right] * 2, "decision": [1, 1]}
        folder.write_table(ResultTable("test", {**columns, "correct": [right] * 2}))
        key = str(iteration) * 64
        folder.record_stages([StageRecord(stage="test", iteration=iteration, key=key, hit=False)])
        runs.add(MlflowMirror(uri).sync(folder))
    (run_id,) = runs
    assert sorted(history(uri, run_id, "final/test/accuracy")) == [(5, 1.0), (6, 0.0)]


def test_all_data_of_a_run_are_mirrored(uri, folder, tmp_path):
    checkpoint = tmp_path / "state.safetensors"
    checkpoint.write_bytes(b"weights")
    folder.write_table(ResultTable("test", COLUMNS))
    (folder.path.parent / "plots.js").write_text("draw()")
    folder.report_path.write_text('<p>report</p><script src="../plots.js"></script>')
    folder.update(checkpoints={"main": [str(checkpoint)], "alone": [str(tmp_path / "gone")]})
    folder.set_status("completed")
    main_id = MlflowMirror(uri).sync(folder)
    runs = check_each_point_once(uri, folder, 3)
    main, alone = runs["main"], runs["alone"]
    assert main.info.run_id == main_id
    assert alone.data.tags["mlflow.parentRunId"] == main_id
    assert main.info.status == alone.info.status == "FINISHED"
    assert main.data.params == {"seed": "1", "rl.lr": "0.1", "rl.sizes": "[1, 2]"}
    assert main.data.tags["ratchet.run_id"] == "nip-1234abcd"
    assert main.data.tags["ratchet.fork_parent"] == "nip-older"
    assert main.data.tags["mlflow.source.git.commit"] == "c0ffee"
    assert main.data.tags["prefect.flow_run_id"] == "f1,f2"
    assert main.data.tags["paper"] == "draft 2"
    assert main.data.metrics["final/test/accuracy"] == 0.75
    assert main.data.metrics["final/test/low"] == pytest.approx(0.3006, abs=1e-4)
    for run, train in ((main, "a"), (alone, "c")):
        digests = {entry.dataset.name: entry.dataset.digest for entry in run.inputs.dataset_inputs}
        assert digests == {"train": train * 36, "test": "b" * 36}
    client = connect(uri)
    names = {item.path for item in client.list_artifacts(main_id)}
    assert names == {"config.yaml", "report.html", "tables"}
    (model,) = client.search_logged_models([main.info.experiment_id])
    assert Path(model.artifact_location.removeprefix("file://"), "state", checkpoint.name).exists()
    assert (tmp_path / "home" / "mlartifacts").is_dir()
    report = Path(client.download_artifacts(main_id, "report.html", str(tmp_path)))
    assert report.read_text() == "<p>report</p><script>draw()</script>"
    assert folder.manifest.tracking["runs"]["main"] == main_id


def test_an_experiment_of_a_stopped_server_is_continued_in_its_folder(uri, folder, tmp_path):
    name = str(folder.manifest.experiment_name)
    experiment = connect(uri).create_experiment(name, "mlflow-artifacts:/7")
    folder.write_table(ResultTable("test", COLUMNS))
    run_id = MlflowMirror(uri).sync(folder)
    assert connect(uri).get_run(run_id).info.experiment_id == experiment
    assert (tmp_path / f"home/mlartifacts/7/{run_id}/artifacts/config.yaml").exists()


def test_repeated_syncs_send_each_point_once(uri, folder):
    for stop in (3, 3, 5, 5):
        record(folder, 0, stop)
        MlflowMirror(uri).sync(folder)
        MlflowMirror(uri).sync(folder)
    check_each_point_once(uri, folder, 5)
    for run in active_runs(uri):
        assert len(run.inputs.dataset_inputs) == 2


@pytest.mark.parametrize("damage", ["lost", "rubbish", "behind"])
def test_a_lost_cursor_is_rebuilt_by_comparison_with_mlflow(uri, folder, damage, monkeypatch):
    cursor = folder.path / "mlflow.json"
    MlflowMirror(uri).sync(folder)
    old = cursor.read_text()
    record(folder, 3, 6)
    MlflowMirror(uri).sync(folder)
    if damage == "lost":
        cursor.unlink()
    elif damage == "rubbish":
        cursor.write_text("{")
    else:  # killed after a batch had arrived and before the cursor was written
        content = json.loads(old)
        for arm in content["arms"].values():
            arm["in_flight"] = True
        cursor.write_text(json.dumps(content))
    record(folder, 6, 7)
    client, sent = connect(uri), []
    original = client.log_batch

    def spy(run_id, metrics=(), **kwargs):
        sent.extend((metric.key, metric.step) for metric in metrics)
        original(run_id, metrics=metrics, **kwargs)

    monkeypatch.setattr(client, "log_batch", spy)
    mirror = MlflowMirror(uri)
    mirror._connected = client
    mirror.sync(folder)
    assert sorted(sent) == 2 * [("train/kl", 6)] + 2 * [("train/loss", 6)]
    check_each_point_once(uri, folder, 7)


def test_a_crash_while_sending_duplicates_no_points(uri, folder, monkeypatch):
    record(folder, 0, 4)
    monkeypatch.setattr("ratchet.tracking.mirrors.mlflow.arm.MAX_METRICS_PER_BATCH", 3)
    client = connect(uri)
    calls = []
    original = client.log_batch

    def failing(run_id, metrics=(), **kwargs):
        original(run_id, metrics=metrics, **kwargs)  # it arrives, but the response is lost
        calls.append(len(metrics))
        if metrics:
            raise ConnectionError("lost the answer")

    monkeypatch.setattr(client, "log_batch", failing)
    mirror = MlflowMirror(uri)
    mirror._connected = client
    with pytest.raises(TrackingError, match=r"lost the answer.*ratchet sync"):
        mirror.sync(folder)
    assert calls[-1] == 3
    MlflowMirror(uri).sync(folder)
    check_each_point_once(uri, folder, 4)


def test_a_crash_after_a_run_is_created_creates_no_second_one(uri, folder, monkeypatch):
    create = ArmMirror._create

    def crash_after(self, experiment_id):
        create(self, experiment_id)
        raise ConnectionError("killed")

    monkeypatch.setattr(ArmMirror, "_create", crash_after)
    with pytest.raises(TrackingError, match="killed"):
        MlflowMirror(uri).sync(folder)
    monkeypatch.undo()
    MlflowMirror(uri).sync(folder)
    check_each_point_once(uri, folder, 3)


def test_a_replaced_point_has_only_its_new_value(uri, folder):
    MlflowMirror(uri).sync(folder)
    before = {run.data.tags["ratchet.arm"]: run.info.run_id for run in active_runs(uri)}
    folder.append_points([MetricPoint("train", 1, {"loss": 7.0, "kl": 7.0})], replace=True)
    MlflowMirror(uri).sync(folder)
    MlflowMirror(uri).sync(folder)
    after = {run.data.tags["ratchet.arm"]: run for run in active_runs(uri)}
    main = after["main"].info.run_id
    assert main != before["main"]
    assert after["alone"].info.run_id == before["alone"]
    assert after["alone"].data.tags["mlflow.parentRunId"] == main
    assert sorted(history(uri, main, "train/loss")) == [(0, 0.0), (1, 7.0), (2, 2 / 3)]


def test_a_run_deleted_in_mlflow_is_mirrored_again(uri, folder):
    first = MlflowMirror(uri).sync(folder)
    connect(uri).delete_run(first)
    assert MlflowMirror(uri).sync(folder) != first
    check_each_point_once(uri, folder, 3)


def test_warnings_are_a_tag_while_they_apply(uri, folder):
    folder.append_metrics("log_stats", 1, {"prover.num_turns": 0.0})
    run_id = MlflowMirror(uri).sync(folder)
    assert "'prover' never acted" in connect(uri).get_run(run_id).data.tags["ratchet.warnings"]
    folder.append_metrics("log_stats", 2, {"prover.num_turns": 5.0})
    assert "ratchet.warnings" not in connect(uri).get_run(MlflowMirror(uri).sync(folder)).data.tags


def test_status_follows_the_run(uri, folder):
    mirror = MlflowMirror(uri)
    for status, expected in [("running", "RUNNING"), ("failed", "FAILED"), ("running", "RUNNING")]:
        folder.set_status(status, "broken" if status == "failed" else None)
        mirror.sync(folder)
        main = next(r for r in active_runs(uri) if r.data.tags["ratchet.arm"] == "main")
        assert main.info.status == expected
        assert ("ratchet.error" in main.data.tags) == (status == "failed")


def test_members_of_a_sweep_are_children_of_its_run(uri, folder, tmp_path):
    parent = MlflowMirror(uri).sync(folder)
    manifest = RunManifest(run_id="member", name="nip", parent_run_id="nip-1234abcd")
    member = MlflowMirror(uri).sync(RunFolder.create(tmp_path / "runs", manifest))
    assert connect(uri).get_run(member).data.tags["mlflow.parentRunId"] == parent


def test_a_sweeps_run_has_its_strategy_and_its_best_member_once(uri, folder, tmp_path):
    runs = tmp_path / "runs"
    spec = {"kind": "random", "num_samples": 2, "parameters": {"rl.lr": {"kind": "uniform"}}}
    member = SweepMemberRecord(run_id="nip-1234abcd", changes={"rl.lr": 0.1})
    path = write_sweep(runs, SweepRecord(sweep_id="s", name="nip", spec=spec, members=[member]))
    folder.update(parent_run_id="s")
    child = MlflowMirror(uri).sync(folder)
    folder.set_status("completed")
    for scored, loss in ((1, 0.5), (1, 0.5), (2, 0.25)):
        best = BestMember("nip-1234abcd", "rl.lr=0.1", scored, {"train/loss": loss})
        MlflowMirror(uri).sync_sweep(path, "nip", best)
    client = connect(uri)
    (parent,) = [r for r in active_runs(uri) if r.data.tags["ratchet.run_id"] == "s"]
    assert client.get_run(child).data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert history(uri, parent.info.run_id, "train/loss") == [(1, 0.5), (2, 0.25)]
    assert parent.data.tags["ratchet.best_changes"] == "rl.lr=0.1"
    assert parent.data.tags["mlflow.user"] == getpass.getuser()
    assert "`ratchet compare s`" in parent.data.tags["mlflow.note.content"]
    assert parent.data.params == {
        "sweep.kind": "random",
        "sweep.num_samples": "2",
        "rl.lr": '{"kind": "uniform"}',
    }
    assert [file.path for file in client.list_artifacts(parent.info.run_id)] == ["sweep.json"]
    assert parent.info.status == "FINISHED"
    presence = RunLock(path)  # one member has ended, another is about to be chosen
    MlflowMirror(uri).sync_sweep(path, "nip", None)
    presence.release()
    assert client.get_run(parent.info.run_id).info.status == "RUNNING"


def test_non_finite_values_and_unusual_names_are_mirrored_once(uri, folder):
    odd = {"nan": math.nan, "inf": math.inf, "p(y|x)": 1.0, "p[y|x]": 2.0}
    folder.append_metrics("odd", 0, odd)
    MlflowMirror(uri).sync(folder)
    (folder.path / "mlflow.json").unlink()
    run_id = MlflowMirror(uri).sync(folder)
    metrics = connect(uri).get_run(run_id).data.metrics
    assert math.isnan(metrics["odd/nan"])
    assert metrics["odd/inf"] > 1e308
    assert sorted(value for key, value in metrics.items() if "odd/p" in key) == [1, 2]
    assert len(history(uri, run_id, "odd/nan")) == 1


def test_parameters_are_flat_and_short():
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}
    assert run_params({"a": {"b": "x" * 900, "c": None}}) == {"a.b": "x" * 500, "a.c": "null"}
    assert len(metric_key("k" * 400)) == 250
    assert metric_key("a(b)") != metric_key("a[b]")


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_server_that_is_down_fails_fast_with_advice(folder):
    uri = f"http://127.0.0.1:{_free_port()}"
    connect(uri)
    started = time.monotonic()
    with pytest.raises(TrackingError, match=r"ratchet sync RUN"):
        MlflowMirror(uri).sync(folder)
    assert time.monotonic() - started < 30, "MLflow's own default is minutes"


def test_credentials_are_not_shown(folder, monkeypatch):
    uri = f"http://somebody:hunter2@127.0.0.1:{_free_port()}"
    with pytest.raises(TrackingError, match=r"tracking at http://127\.0\.0\.1:") as failure:
        MlflowMirror(uri).sync(folder)
    assert "hunter2" not in str(failure.value)
    assert run_url(uri, "1", "2").startswith("http://127.0.0.1:")
    monkeypatch.setattr("sys.argv", ["ratchet", "run", f"settings.tracking_uri={uri}"])
    assert command_line()[-1] == f"settings.tracking_uri={uri.replace('somebody:hunter2@', '')}"


@pytest.mark.slow
def test_a_server_that_never_responds_fails_within_seconds(folder):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        started = time.monotonic()
        with pytest.raises(TrackingError):
            MlflowMirror(f"http://127.0.0.1:{silent.getsockname()[1]}").sync(folder)
        assert time.monotonic() - started < 15


def start_server(port, database, log):
    """Start a real tracking server with a database and wait for it."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{database}", "--workers", "1"]
    command += ["--artifacts-destination", str(database.parent / "artifacts")]
    server = subprocess.Popen(command, stdout=log, stderr=log)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
        except OSError:
            assert server.poll() is None, "the server died"
            time.sleep(0.2)
        else:
            return server
    raise AssertionError("the server did not start")


@pytest.mark.slow
def test_mlflow_prints_nothing_even_if_it_was_imported_before(uri):
    code = f"""
import mlflow
import mlflow.utils.logging_utils  # configures its logging, from INFO
from ratchet.tracking.mirrors.mlflow.client import connect
client = connect({uri!r})
run = client.create_run("0")
client.create_registered_model("model")
client.create_model_version("model", "file:///model", run.info.run_id)
client.set_terminated(run.info.run_id)
__import__("logging").getLogger("mlflow.store").info("a line of MLflow's")
__import__("logging").getLogger("alembic.runtime.migration").info("a line of its migrations")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.slow
def test_a_server_that_comes_back_catches_up(folder, empty_database, tmp_path, capfd):
    port = _free_port()
    uri = f"http://127.0.0.1:{port}"
    mirror = MlflowMirror(uri)
    with pytest.raises(TrackingError):
        mirror.sync(folder)
    record(folder, 3, 600)
    folder.write_table(ResultTable("test", COLUMNS))
    shutil.copy(empty_database, tmp_path / "server.db")
    with (tmp_path / "server.log").open("wb") as log:
        server = start_server(port, tmp_path / "server.db", log)
        try:
            run_id = mirror.sync(folder)
            (folder.path / "mlflow.json").unlink()
            folder.set_status("completed")
            assert mirror.sync(folder) == run_id
            assert "View run" not in capfd.readouterr().out
            check_each_point_once(uri, folder, 600)
            paths = {item.path for item in connect(uri).list_artifacts(run_id)}
            assert paths == {"config.yaml", "tables"}
            tracking = folder.manifest.tracking
            assert tracking["url"] == run_url(uri, tracking["experiment_id"], run_id)
        finally:
            server.terminate()
            server.wait(240)


def test_infinite_values_are_named_in_a_warning(uri, folder, caplog):
    points = [MetricPoint("train", i, {"gap": value}) for i, value in ((3, math.inf), (4, 1.0))]
    folder.append_points(points)
    for _ in range(2):
        MlflowMirror(uri).sync(folder)
    runs = {run.data.tags["ratchet.arm"]: run for run in active_runs(uri)}
    text = "train/gap: infinite values are stored in MLflow as ±1.8e308"
    assert text in runs["main"].data.tags["ratchet.warnings"]
    assert "ratchet.warnings" not in runs["alone"].data.tags
    assert sum(text in message for message in caplog.messages) == 1
