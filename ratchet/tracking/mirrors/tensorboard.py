"""``TensorboardMirror``: a run's event files, shown by ``tensorboard --logdir runs``.

The content is a deterministic function of the run folder. So an existing file is either a prefix of
the content, even after a kill, and the rest is appended; or it is rewritten.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.tracking.files import locked, write_atomically
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.mirrors.base import MIRRORS, Mirror, tracking_error
from ratchet.tracking.mirrors.payload import (
    final_metrics,
    point_metrics,
    read_hyper_params,
    run_note,
)

if TYPE_CHECKING:
    from google.protobuf.struct_pb2 import Value
    from tensorboard.compat.proto.summary_pb2 import Summary

    from ratchet.tracking.metrics import MetricPoint
    from ratchet.tracking.run_folder import RunFolder


@MIRRORS.register("tensorboard")
class TensorboardMirror(Mirror):
    """Write one event file for each arm of a run.

    Scalars are ``STAGE/NAME`` at the iterations; TensorBoard stores them in single precision. The
    end of a run adds its results, a description, and the parameters read, for TensorBoard's table
    of hyper-parameters.

    Parameters
    ----------
    place
        The folder in the run's folder; each arm has one in it.
    """

    title = "TensorBoard"
    packages = ("tensorboard",)
    files = ("tensorboard",)
    live = True

    @classmethod
    def choose_place(cls, tracking_uri: str) -> str:
        """Return the folder in a run's folder."""
        return "tensorboard/"

    def sync(self, folder: RunFolder) -> str:
        """Sync the event files with a run folder; return their folder."""
        event_folder = folder.path / self.place
        with locked(folder.path / ".tensorboard.lock"):
            try:
                points = folder.read_metrics()
                for arm in [MAIN_ARM, *sorted(folder.manifest.arms.keys() - {MAIN_ARM})]:
                    arm_points = [point for point in points if point.arm == arm]
                    name = f"events.out.tfevents.{int(folder.manifest.created):010}.ratchet"
                    _bring_up_to(event_folder / arm / name, _content(folder, arm, arm_points))
            except (OSError, ImportError) as error:
                raise tracking_error(
                    f"writing TensorBoard's files in {event_folder}", error
                ) from error
        return str(event_folder)


def _bring_up_to(path: Path, content: bytes) -> None:
    """Append the missing content; rewrite a file whose content differs."""
    known = path.read_bytes() if path.exists() else b""
    if known == content:
        return
    if not known or not content.startswith(known):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        return
    with path.open("ab") as file:
        file.write(content[len(known) :])


def _content(folder: RunFolder, arm: str, points: list[MetricPoint]) -> bytes:
    """Return an arm's events: metrics, then the summary of a run that has ended."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    manifest = folder.manifest
    file = io.BytesIO()
    writer = RecordWriter(file)

    def write(seconds: float, **content: Any) -> None:  # noqa: ANN401 -- an event's one field
        writer.write(Event(wall_time=seconds, **content).SerializeToString(deterministic=True))

    def scalar(key: str, step: int, value: float, milliseconds: int) -> None:
        summary = Summary(value=[Summary.Value(tag=key, simple_value=value)])
        write(milliseconds / 1000, step=step, summary=summary)

    write(manifest.created, file_version="brain.Event:2")
    for metric in point_metrics(points, manifest.kinds):
        scalar(*metric)
    if manifest.status != "running":
        tables = [table for table in folder.read_tables() if table.arm == arm]
        for metric in final_metrics(tables, int(manifest.created * 1000)):
            scalar(*metric)
        write(manifest.finished or manifest.created, summary=Summary(value=_ending(folder, arm)))
    return file.getvalue()


def _ending(folder: RunFolder, arm: str) -> list[Summary.Value]:
    """Return the summary of an ended run: description, parameters, status."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import (
        HParamsPluginData,
        SessionEndInfo,
        SessionStartInfo,
    )
    from tensorboard.plugins.text.metadata import create_summary_metadata

    manifest = folder.manifest
    start = SessionStartInfo(
        group_name=f"{manifest.run_id}/{arm}", start_time_secs=manifest.created
    )
    for path, value in read_hyper_params(manifest, arm).items():
        _set(start.hparams[path], value)
    done = manifest.status == "completed"
    end = SessionEndInfo(
        status=api_pb2.STATUS_SUCCESS if done else api_pb2.STATUS_FAILURE,
        end_time_secs=manifest.finished or manifest.created,
    )
    sessions = {
        metadata.SESSION_START_INFO_TAG: HParamsPluginData(session_start_info=start),
        metadata.SESSION_END_INFO_TAG: HParamsPluginData(session_end_info=end),
    }
    note = TensorProto(dtype=DT_STRING, string_val=[run_note(manifest, arm).encode()])
    text_metadata = create_summary_metadata(display_name=None, description=None)
    return [
        Summary.Value(tag="about", metadata=text_metadata, tensor=note),
        *(
            Summary.Value(
                tag=tag,
                metadata=metadata.create_summary_metadata(data),
                tensor=metadata.NULL_TENSOR,
            )
            for tag, data in sessions.items()
        ),
    ]


def _set(target: Value, value: object) -> None:
    """Set a parameter's value: a boolean, a number, or a text."""
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int | float):
        target.number_value = value
    else:
        target.string_value = str(value)
