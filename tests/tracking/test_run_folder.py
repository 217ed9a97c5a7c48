"""Run folders: each point once, despite kills and concurrent writers; search by name."""

import json
import math
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ratchet.errors import DataError, RatchetError, RunNotFoundError
from ratchet.tracking import (
    MetricPoint,
    ResultTable,
    RunFolder,
    RunManifest,
    StageRecord,
    capture_code_state,
    capture_versions,
    files,
    find_run,
    list_runs,
)
from ratchet.tracking.environment import made_with
from ratchet.tracking.files import JsonLines, write_atomically
from ratchet.tracking.sweep_folder import SweepMemberRecord, SweepRecord, read_sweep, write_sweep


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path, RunManifest(run_id="nip-1234abcd", name="nip"))


def _stage(iteration, hit=False, stage="train"):
    start = max(0, iteration - 10)
    return StageRecord(
        stage=stage, iteration=iteration, start_iteration=start, key="k" * 64, hit=hit, seconds=1.5
    )


def test_a_point_appended_repeatedly_is_recorded_once(folder):
    assert folder.append_metrics("train", 0, {"loss": 0.5, "bad": math.nan, "huge": math.inf})
    before = (folder.path / "metrics.jsonl").read_bytes()
    again = RunFolder(folder.path)
    assert not again.append_metrics("train", 0, {"loss": 0.5, "bad": math.nan, "huge": math.inf})
    assert (folder.path / "metrics.jsonl").read_bytes() == before
    (point,) = again.read_metrics()
    assert math.isnan(point.values["bad"])
    assert point.values["huge"] == math.inf
    for line in before.decode().split("\n")[:-1]:
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_points_are_identified_by_arm_stage_and_iteration(folder):
    for arm in ("main", "alone"):
        for stage in ("train", "test"):
            for iteration in (0, 1):
                assert folder.append_metrics(stage, iteration, {"a": 1.0}, arm=arm)
    assert len(folder.read_metrics()) == 8


def test_a_different_value_is_an_error_unless_it_replaces(folder):
    folder.append_points([MetricPoint("train", i, {"loss": float(i)}) for i in range(3)])
    with pytest.raises(DataError, match=r"loss: recorded 1\.0, got 9\.0.*replace=True"):
        folder.append_points(
            [MetricPoint("train", 3, {"loss": 3.0}), MetricPoint("train", 1, {"loss": 9.0})]
        )
    assert [point.values["loss"] for point in folder.read_metrics()] == [0, 1, 2]
    assert folder.append_metrics("train", 1, {"loss": 9.0}, replace=True)
    for reader in (folder, RunFolder(folder.path)):
        assert [point.values["loss"] for point in reader.read_metrics()] == [0, 9, 2]


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_line_truncated_by_a_kill_is_dropped_and_rewritten(folder, cut):
    folder.append_metrics("train", 0, {"loss": 0.5})
    folder.append_metrics("train", 1, {"loss": 0.25})
    whole = (folder.path / "metrics.jsonl").read_bytes()
    (folder.path / "metrics.jsonl").write_bytes(whole[:-cut])
    after = RunFolder(folder.path)
    assert [point.iteration for point in after.read_metrics()] == [0]
    assert after.append_metrics("train", 1, {"loss": 0.25})
    assert [point.iteration for point in RunFolder(folder.path).read_metrics()] == [0, 1]
    assert len((folder.path / "metrics.jsonl").read_bytes().split(b"\n")[:-1]) == 2


def test_a_damaged_line_in_the_middle_is_reported(folder):
    folder.append_metrics("train", 0, {"loss": 0.5})
    path = folder.path / "metrics.jsonl"
    path.write_bytes(b"rubbish\n" + path.read_bytes())
    with pytest.raises(DataError, match=r"rubbish.*Remove that line"):
        RunFolder(folder.path).read_metrics()


def _write_all(path, writer):
    folder = RunFolder(path)
    for iteration in range(40):
        folder.append_metrics("train", iteration, {"loss": iteration / 7})
        folder.append_metrics("own", iteration, {"w": float(writer)}, arm=f"arm{writer}")
        folder.log_event("tick", f"{writer}/{iteration}")
        if iteration % 10 == 0:
            folder.record_stages([_stage(iteration, stage=f"train{writer}")])


@pytest.mark.slow
def test_concurrent_writers_of_a_run_lose_and_duplicate_no_points(folder):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_all, args=(folder.path, k)) for k in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    points = folder.read_metrics()
    assert len(points) == 40 + 3 * 40
    assert len((folder.path / "metrics.jsonl").read_text().split("\n")[:-1]) == len(points)
    assert len(folder.read_events()) == 120
    assert len(folder.manifest.stages) == 12


WRITER = """
import sys
from ratchet.tracking import RunFolder, MetricPoint
folder = RunFolder(sys.argv[1])
for i in range(100_000):
    folder.append_points([MetricPoint("train", i, {"loss": i / 3, "text" * 200: 1.0})])
    folder.update(seeds={"main": i})
"""


def test_sigkill_leaves_complete_points_and_a_complete_manifest(folder):
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder.path)])
        known = len(folder.read_metrics())
        deadline = time.monotonic() + 300
        while len(folder.read_metrics()) < known + 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        points = RunFolder(folder.path).read_metrics()
        assert len(points) > known
        assert [point.iteration for point in points] == list(range(len(points)))
        assert folder.manifest.run_id == "nip-1234abcd"


def test_resuming_a_run_keeps_its_content(folder, tmp_path):
    folder.record_stages([_stage(10), _stage(20)])
    folder.set_status("failed", "it broke")
    assert folder.manifest.finished is not None
    changed = RunManifest(run_id="nip-1234abcd", name="nip", prefect_flow_run_ids=["b"])
    again = RunFolder.create(tmp_path, changed)
    again.record_stages([_stage(10, hit=True)])
    manifest = again.manifest
    assert manifest.status == "running"
    assert manifest.error is None
    assert [record.hit for record in manifest.stages] == [True, False]


def test_an_unknown_field_is_reported_with_the_nearest_name(folder):
    with pytest.raises(DataError, match="Did you mean 'dataset_hashes'"):
        folder.update(dataset_hash={})
    with pytest.raises(DataError, match="status"):
        folder.update(status="odd")


@pytest.mark.parametrize("run_id", ["../up", "", ".hidden", "a/b"])
def test_run_ids_that_leave_the_folder_are_refused(tmp_path, run_id):
    with pytest.raises(DataError, match="cannot be a file's name"):
        RunFolder.create(tmp_path, RunManifest(run_id=run_id, name="x"))


def test_tables_round_trip(folder):
    columns = {"datapoint_id": [3, 4], "y": [0, 1], "decision": [0, 2], "correct": [1, 0]}
    path = folder.write_table(ResultTable("test", columns))
    folder.write_table(ResultTable("test", columns))
    assert path.name == "main-test.json"
    (table,) = folder.read_tables()
    assert (table.arm, table.name, dict(table.columns)) == ("main", "test", columns)
    folder.write_table(ResultTable("b-test", columns, "a"))
    with pytest.raises(DataError, match="Rename one of the arms"):
        folder.write_table(ResultTable("test", columns, "a-b"))


def test_tables_with_missing_columns_or_values_are_refused():
    with pytest.raises(DataError, match="different lengths"):
        ResultTable("test", {"datapoint_id": [1], "y": [1], "decision": [1], "correct": []})
    with pytest.raises(DataError, match="correct"):
        ResultTable("test", {"datapoint_id": [1], "y": [1], "decision": [1]})


def test_runs_are_listed_newest_first_and_found_by_prefix(tmp_path):
    for age, run_id in enumerate(["nip-aa11", "nip-bb22", "adp-cc33"]):
        RunFolder.create(tmp_path, RunManifest(run_id=run_id, name="n", created=1000.0 - age))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    assert [run.run_id for run in list_runs(tmp_path)] == ["nip-aa11", "nip-bb22", "adp-cc33"]
    assert find_run(tmp_path, "nip-bb22").run_id == "nip-bb22"
    assert find_run(tmp_path, "adp").run_id == "adp-cc33"
    assert find_run(tmp_path, str(tmp_path / "adp-cc33")).run_id == "adp-cc33"
    with pytest.raises(RunNotFoundError, match="nip-aa11, nip-bb22"):
        find_run(tmp_path, "nip")
    RunFolder.create(tmp_path, RunManifest(run_id="adp-cc33-exploit-dd44", name="n"))
    assert find_run(tmp_path, "adp").run_id == "adp-cc33", "and not the attack on it"
    for number in range(9):
        RunFolder.create(tmp_path, RunManifest(run_id=f"many-{number}", name="n"))
    with pytest.raises(RunNotFoundError, match=r"of 9 runs or .*many-4 and 4 more\. Give more"):
        find_run(tmp_path, "many")
    with pytest.raises(RunNotFoundError, match="Did you mean 'nip-aa11'"):
        find_run(tmp_path, "nip-aa12")
    with pytest.raises(RunNotFoundError, match="no runs yet"):
        find_run(tmp_path / "empty", "x")
    assert list_runs(tmp_path / "empty") == []


def test_an_exact_id_takes_precedence_over_prefixes_of_runs_and_sweeps(tmp_path):
    member = SweepMemberRecord(run_id="demo-1-exploit-2", changes={})
    for run_id in ("demo-1", "demo-1-exploit-2"):
        RunFolder.create(tmp_path, RunManifest(run_id=run_id, name="n"))
    for sweep_id in ("demo-1-exploit-sweep-3", "demo-1-exploit"):
        write_sweep(tmp_path, SweepRecord(sweep_id=sweep_id, name="n", members=[member]))
    assert read_sweep(tmp_path, "demo-1") is None, "a run, and not the attacks on it"
    assert find_run(tmp_path, "demo-1").run_id == "demo-1"
    assert find_run(tmp_path, "demo").run_id == "demo-1"
    assert read_sweep(tmp_path, "demo") is None
    assert read_sweep(tmp_path, "demo-1-exploit").sweep_id == "demo-1-exploit"
    with pytest.raises(RunNotFoundError, match="'demo-1-exploit' is a sweep, expected a run"):
        find_run(tmp_path, "demo-1-exploit")
    RunFolder.create(tmp_path, RunManifest(run_id="other-1", name="n"))
    write_sweep(tmp_path, SweepRecord(sweep_id="other-sweep-2", name="n", members=[]))
    for find in (find_run, read_sweep):
        with pytest.raises(RunNotFoundError, match=r"2 runs or sweeps in .*: other-1, other-sweep"):
            find(tmp_path, "other")


def test_the_code_state_contains_the_commit_and_uncommitted_changes(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    assert capture_code_state(tmp_path).commit is None
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    clean = capture_code_state(tmp_path)
    assert len(clean.commit) == 40
    assert not clean.dirty
    (tmp_path / "new.py").write_text("")
    assert capture_code_state(tmp_path).dirty
    assert capture_versions()["python"].startswith("3.")


def test_the_machine_is_described_beyond_its_name():
    described = made_with(3)
    assert described["torch CPU capability"] == torch.backends.cpu.get_cpu_capability()
    assert described["torch threads"] == "3"
    assert described["numpy BLAS"]
    if platform.machine() == "x86_64":
        assert "family" in described["processor model"]
        assert "sse4_2" in described["instruction sets"]
        assert "Math Kernel Library 20" in described["torch BLAS"]


def test_importing_run_folders_imports_no_heavy_packages():
    code = (
        "import sys, ratchet.tracking.run_folder, ratchet.tracking.mirrors.mlflow.mirror;"
        "print([m for m in ('torch', 'mlflow', 'prefect', 'scipy') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert result.stdout.strip() == "[]"


def in_the_way(path, kind):
    """Write an invalid file, or one nested far too deep, where a file is expected."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(path.parent / "nowhere")
    else:
        path.write_text('{"arm":' * 100_000 + "\n")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "deep"])
@pytest.mark.parametrize(
    "name", ["manifest.json", "metrics.jsonl", "events.jsonl", "tables/main-test.json"]
)
def test_invalid_files_are_reported_without_blocking(tmp_path, name, kind):
    folder = RunFolder.create(tmp_path, RunManifest(run_id="run", name="run", arms={"main": {}}))
    in_the_way(folder.path / name, kind)
    readers = {
        "manifest.json": lambda: RunFolder(folder.path).manifest,
        "metrics.jsonl": folder.read_metrics,
        "events.jsonl": folder.read_events,
        "tables/main-test.json": folder.read_tables,
    }
    if kind == "link" and name.endswith("jsonl"):
        assert readers[name]() == []
    else:
        with pytest.raises(RatchetError, match=re.escape(Path(name).name)):
            readers[name]()
    assert len(list_runs(tmp_path)) == (name != "manifest.json")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")

    def broken(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files.os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(path, "new")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "old")]


def test_folders_of_new_files_are_flushed_to_the_disk(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(files, "_flush_folder", flushed.append)
    write_atomically(tmp_path / "file", "text")
    JsonLines(tmp_path / "lines").append([{"a": 1}])
    JsonLines(tmp_path / "lines").append([{"a": 2}])
    assert flushed == [tmp_path] * 2, "an append to an existing file renames nothing"


def test_a_line_that_is_stored_twice_is_removed_when_points_are_compared(folder):
    folder.append_metrics("train", 0, {"loss": 1.0})
    folder.append_metrics("train", 1, {"loss": 2.0})
    points = folder.read_metrics()
    path = folder.path / "metrics.jsonl"
    text = path.read_text()
    path.write_text(text + text.splitlines()[-1] + "\n")
    assert RunFolder(folder.path).correct_points(points, is_complete=True)
    assert path.read_text() == text
    assert not RunFolder(folder.path).correct_points(points, is_complete=True)
