"""W&B's offline runs contain each point once, without network and key."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.errors import MissingPackageError, TrackingError
from ratchet.tracking import MetricPoint, ResultTable, RunFolder, RunManifest
from ratchet.tracking.mirrors.base import choose_place, open_mirror

BLOCK, HEADER, RECORD = 32768, 7, struct.Struct("<IHB")
WHOLE, LAST = 1, 4


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    manifest = RunManifest(
        run_id="nip-1",
        name="nip",
        arms={"main": {"seed": 1, "rl": {"lr": 0.5, "unread": 3}}},
        read_parameters={"main": ["seed", "rl.lr"]},
        settings={"home": str(tmp_path / "home")},
    )
    folder = RunFolder.create(tmp_path / "runs", manifest)
    record(folder, 0, 3)
    return folder


def record(folder: RunFolder, start: int, stop: int) -> None:
    folder.append_points([MetricPoint("train", i, {"loss": i / 4}) for i in range(start, stop)])


def records(file: Path) -> Iterator[bytes]:
    """Read a W&B file: a log of blocks whose records are split into parts."""
    data, place, parts = file.read_bytes(), HEADER, b""
    while place + RECORD.size <= len(data):
        left = BLOCK - place % BLOCK
        if left < RECORD.size:
            place += left
            continue
        _, length, kind = RECORD.unpack_from(data, place)
        place += RECORD.size
        parts += data[place : place + length]
        place += length
        if kind in (WHOLE, LAST):
            yield parts
            parts = b""


def written(folder: RunFolder) -> dict[str, list[object]]:
    """Read all offline runs of a run: points, parameters, ids, artifacts, results."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, list[object]] = {k: [] for k in ("points", "config", "ids", "files", "final")}
    for file in sorted(folder.path.glob("wandb/offline-run-*/*.wandb")):
        for each in map(Record.FromString, records(file)):
            if each.HasField("history"):
                items = {
                    item.key or "/".join(item.nested_key): item.value_json
                    for item in each.history.item
                }
                found["points"].append((json.loads(items["iteration"]), float(items["train/loss"])))
            if each.HasField("run"):
                found["ids"].append(each.run.run_id)
                config = {item.key: json.loads(item.value_json) for item in each.run.config.update}
                found["config"].append({k: v for k, v in config.items() if k[0] != "_"})
            if each.HasField("artifact"):
                found["files"] += [entry.path for entry in each.artifact.manifest.contents]
            if each.HasField("summary"):
                found["final"] += [
                    item.key or "/".join(item.nested_key) for item in each.summary.update
                ]
    return found


PROGRAM = """
import sys
from ratchet.tracking import RunFolder
from ratchet.tracking.mirrors.wandb import WandbMirror
import wandb
if sys.argv[2:]:
    finish = wandb.Run.finish
    def hang(run, **kwargs):
        finish(run, **kwargs)
        print("written", flush=True)
        sys.stdin.read()
    wandb.Run.finish = hang
WandbMirror("offline").sync(RunFolder(sys.argv[1]))
"""


def child(folder: RunFolder, *arguments: str) -> subprocess.Popen[bytes]:
    """Mirror in a separate process without a key."""
    hidden = {name: text for name, text in os.environ.items() if not name.startswith("WANDB_")}
    command = [sys.executable, "-c", PROGRAM, str(folder.path), *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(
        command, env={**hidden, "HOME": str(folder.path.parent)}, start_new_session=True, **pipes
    )


@pytest.mark.slow
def test_each_point_is_written_once_also_after_a_kill(folder: RunFolder) -> None:
    killed = child(folder, "hang")
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"written\n"
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    columns = {"datapoint_id": [0, 1], "y": [0, 1], "decision": [0, 0], "correct": [1, 0]}
    folder.write_table(ResultTable("test", columns))
    folder.report_path.write_text("<p>report</p>")
    record(folder, 3, 5)
    folder.set_status("completed")
    assert child(folder).wait(120) == 0
    found = written(folder)
    assert found["points"] == [(i, i / 4) for i in range(5)]
    assert found["config"][0] == {"seed": 1, "rl.lr": 0.5}
    assert set(found["ids"]) == {"nip-1"}
    assert "report.html" in found["files"]
    assert "final/test/accuracy" in found["final"]
    record(folder, 5, 6)
    time.sleep(1)  # W&B names folders by the second
    assert child(folder).wait(120) == 0
    assert written(folder)["points"] == [(i, i / 4) for i in range(6)]


def test_a_mode_that_writes_no_data_is_reported(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_place("wandb", "") == "offline", "no data is sent by default"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with pytest.raises(TrackingError, match=r"WANDB_MODE is 'disabled'.*settings.mirrors"):
        open_mirror("wandb", choose_place("wandb", "")).sync(folder)


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.lazy.is_installed", lambda package: False)
    with pytest.raises(MissingPackageError, match=r"ratchet-experiments\[mirrors\]"):
        choose_place("tensorboard", "")
