"""TensorBoard's event files contain each point once, despite kills and replacements."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from ratchet.errors import TrackingError
from ratchet.tracking import MetricPoint, ResultTable, RunFolder, RunManifest
from ratchet.tracking.mirrors.tensorboard import TensorboardMirror


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    arms = {"main": {"seed": 1, "rl": {"lr": 0.5, "unread": 3}}, "alone": {"seed": 2}}
    manifest = RunManifest(
        run_id="nip-1", name="nip", arms=arms, read_parameters={"main": ["seed", "rl.lr"]}
    )
    folder = RunFolder.create(tmp_path / "runs", manifest)
    record(folder, 0, 3)
    return folder


def record(folder: RunFolder, start: int, stop: int) -> None:
    for arm in ("main", "alone"):
        points = [MetricPoint("train", i, {"loss": i / 4}, arm) for i in range(start, stop)]
        folder.append_points(points)


def sync(folder: RunFolder) -> Path:
    return Path(TensorboardMirror("tensorboard/").sync(folder))


def scalars(folder: RunFolder, arm: str = "main") -> Mapping[str, list[tuple[int, float]]]:
    read = EventAccumulator(str(folder.path / "tensorboard" / arm)).Reload()
    return {
        tag: [(event.step, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


def test_points_results_and_read_parameters_are_written(folder: RunFolder) -> None:
    columns = {"datapoint_id": [0, 1], "y": [0, 1], "decision": [0, 0], "correct": [1, 0]}
    folder.write_table(ResultTable("test", columns))
    sync(folder)
    assert scalars(folder) == {"train/loss": [(0, 0.0), (1, 0.25), (2, 0.5)]}
    folder.set_status("completed")
    place = sync(folder)
    assert scalars(folder)["final/test/accuracy"] == [(0, 0.5)]
    assert scalars(folder, "alone") == {"train/loss": [(0, 0.0), (1, 0.25), (2, 0.5)]}
    read = EventAccumulator(str(place / "main")).Reload()
    plugin = read.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    told = HParamsPluginData.FromString(plugin).session_start_info.hparams
    assert {name: value.number_value for name, value in told.items()} == {"seed": 1, "rl.lr": 0.5}
    (text,) = read.Tensors("about")
    assert b"ratchet report nip-1" in text.tensor_proto.string_val[0]


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.72, 1.0])
def test_each_point_is_written_once_after_a_kill_at_any_byte(
    folder: RunFolder, kept: float
) -> None:
    (path,) = sync(folder).glob("main/*")
    begin = path.stat().st_size
    record(folder, 3, 40)
    sync(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[: begin + int(kept * (len(whole) - begin))])
    record(folder, 40, 42)
    sync(folder)
    sync(folder)
    assert scalars(folder) == {"train/loss": [(i, i / 4) for i in range(42)]}
    assert path.read_bytes().startswith(whole), "a reader continues at its position"
    shutil.rmtree(path.parent)
    sync(folder)
    assert len(scalars(folder)["train/loss"]) == 42


def test_a_replaced_point_has_only_its_new_value(folder: RunFolder) -> None:
    sync(folder)
    folder.append_points([MetricPoint("train", 1, {"loss": 7.0})], replace=True)
    sync(folder)
    assert scalars(folder)["train/loss"] == [(0, 0.0), (1, 7.0), (2, 0.5)]


def test_an_unwritable_folder_is_reported(folder: RunFolder) -> None:
    (folder.path / "tensorboard").write_text("in the way")
    with pytest.raises(TrackingError, match="ratchet sync RUN"):
        sync(folder)
