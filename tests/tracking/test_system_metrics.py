"""System metrics: recorded in the run folder, and once in MLflow."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratchet.tracking import MlflowMirror, RunFolder, RunManifest
from ratchet.tracking.mirrors.mlflow.client import connect, default_tracking_uri
from ratchet.tracking.system_metrics import SYSTEM_FILE, SystemSampler, read_system_metrics


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", RunManifest(run_id="one", name="one"))


def sample(folder: RunFolder, count: int) -> None:
    """Record system metrics at least ``count`` times, then check that recording stops."""
    before = len(read_system_metrics(folder.path))
    sampler = SystemSampler(folder.path, 0.01)
    while len(read_system_metrics(folder.path)) < before + count:
        time.sleep(0.005)
    sampler.close()
    noted = len(read_system_metrics(folder.path))
    time.sleep(0.05)
    assert len(read_system_metrics(folder.path)) == noted


def test_a_run_shorter_than_the_interval_records_no_metrics(folder: RunFolder) -> None:
    SystemSampler(folder.path, 60.0).close()
    assert not (folder.path / SYSTEM_FILE).exists()


def test_each_sample_is_in_mlflow_once(
    folder: RunFolder, empty_database: Path, tmp_path: Path
) -> None:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    uri = default_tracking_uri(tmp_path)
    for count in (3, 2):  # the second time like a resumed run
        sample(folder, count)
        run_id = MlflowMirror(uri).sync(folder)
    (folder.path / "mlflow.json").unlink()
    MlflowMirror(uri).sync(folder)
    noted = read_system_metrics(folder.path)
    client = connect(uri)
    for name, bound in (
        ("cpu_utilization_percentage", 100),
        ("process_memory_usage_megabytes", 1e6),
    ):
        told = client.get_metric_history(run_id, f"system/{name}")
        assert sorted((point.step, point.value) for point in told) == [
            (step, values[name]) for step, (_, values) in enumerate(noted)
        ]
        assert all(0 <= point.value <= bound for point in told)


def test_gpus_are_measured_if_nvidias_library_is_installed(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda place: place,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=2e9, total=8e9),
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=93),
        nvmlDeviceGetPowerUsage=lambda _: 350_000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    sample(folder, 1)
    _, values = read_system_metrics(folder.path)[0]
    assert values["gpu_0_memory_usage_percentage"] == 25
    assert values["gpu_0_utilization_percentage"] == 93
    assert values["gpu_0_power_usage_watts"] == 350
