"""Metrics and traces reach a collector over HTTP; without one, no package is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratchet.tracking.live_file import LiveFile
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.observers import RunObserver
from ratchet.tracking.run_folder import RunFolder
from tests.tracking.collector import Collector, collecting, plain

USED = {
    "stage": "sample_rollouts", "agent": "prover", "model": "gpt-x", "calls": 3,
    "prompt_tokens": 100, "completion_tokens": 40, "training_tokens": 0, "cost": 0.25,
}  # fmt: skip


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=very-secret")
        yield collector


def observer(tmp_path: Path) -> RunObserver:
    manifest = RunManifest(run_id="nip-1", name="nip", arms={"main": {}}, settings={})
    folder = RunFolder.create(tmp_path, manifest)
    return RunObserver(folder, LiveFile(folder.path))


def stage(name: str, iteration: int = 0) -> SimpleNamespace:
    return SimpleNamespace(arm="main", name=name, iteration=iteration)


def play(run: RunObserver) -> None:
    """Report a small run: a stage that fails once, a cache hit, a paid stage."""
    begin = time.time()
    with run.told():
        with pytest.raises(RuntimeError), run.under_way(stage("train", 4)):
            raise RuntimeError("lost")
        run.failed(stage("train", 4), RuntimeError("lost"), again=True)
        with run.under_way(stage("train", 4)):
            run.live.advance(4)
        run.tell("stage.computed", "", stage("train", 4), seconds=2.5, iterations=4)
        run.tell("stage.cached", "", stage("test", 4), seconds=1.0)
        run.waited(stage("sample_rollouts"), 7.0)
        run.tell("stage.stalled", "", stage("sample_rollouts"), seconds=700.0)
        run.tell("stage.computed", "", stage("sample_rollouts"), seconds=0.5, usage=[USED])
        run.folder.set_status("failed", "RuntimeError: lost")
    assert time.time() - begin < 10


def test_counters_of_a_run_are_pushed_at_its_end(collector: Collector, tmp_path: Path) -> None:
    play(observer(tmp_path))
    value = collector.value
    outcomes = ("retried", "computed", "failed")
    counted = [value("ratchet.stages", stage="train", outcome=each) for each in outcomes]
    assert counted == [1, 1, 0]
    assert value("ratchet.stages") == 4
    assert value("ratchet.stage.stalls") == 1
    assert value("ratchet.stages", stage="test", outcome="cached") == 1
    assert value("ratchet.stage.duration", stage="train") == 2.5
    assert value("ratchet.stage.wait") == 7.0
    assert value("ratchet.iterations", arm="main") == 4
    assert value("ratchet.progress.steps") == 4
    assert abs(value("ratchet.progress.time") - time.time()) < 60
    assert value("ratchet.model.calls", model="gpt-x", agent="prover") == 3
    assert value("ratchet.model.tokens", kind="prompt") == 100
    assert value("ratchet.model.tokens", kind="completion") == 40
    assert value("ratchet.model.cost", model="gpt-x") == 0.25
    assert value("ratchet.runs", status="failed") == 1
    (resource,) = collector.resources
    assert resource["service.name"] == "ratchet"
    assert resource["ratchet.run"] == "nip-1"
    assert resource["service.instance.id"].startswith("nip-1@")
    assert collector.headers[0]["x-token"] == "very-secret"
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"very-secret" not in written


def test_stages_are_spans_of_the_run(collector: Collector, tmp_path: Path) -> None:
    play(observer(tmp_path))
    spans = {span.name: span for span in collector.spans}
    assert sorted(span.name for span in collector.spans) == ["run nip-1", *["stage train"] * 2]
    assert spans["stage train"].parent_span_id == spans["run nip-1"].span_id
    assert plain(spans["stage train"].attributes) == {
        "arm": "main",
        "stage": "train",
        "iteration": 4,
    }
    errors = sorted(span.status.code for span in collector.spans)
    assert errors == [0, 2, 2], "the first attempt, and the run"


def test_an_unavailable_collector_delays_a_run_by_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting() as gone:
        url = gone.url
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setattr("ratchet.tracking.telemetry._TIMEOUT", 0.5)
    play(observer(tmp_path))
    said = [record.getMessage() for record in caplog.records if "opentelemetry" in record.name]
    assert len(said) == 1, "expected one message per run"
    assert said[0].startswith("Failed to export")


def test_without_the_exporter_a_run_continues_with_an_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("ratchet.lazy.is_installed", lambda package: False)
    play(observer(tmp_path))
    assert "pip install 'ratchet-experiments[telemetry]'" in caplog.text


def test_without_a_collector_no_telemetry_package_is_imported(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path;"
        "from tests.tracking.test_telemetry import observer, play;"
        "play(observer(Path(sys.argv[1])));"
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]", done.stderr
