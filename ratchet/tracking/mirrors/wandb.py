"""``WandbMirror``: a run's arms as W&B runs, on disk or sent to a server.

W&B writes offline runs into ``wandb`` in the run's folder; ``wandb sync`` sends them.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from ratchet.errors import TrackingError
from ratchet.store.local import hash_file
from ratchet.tracking.files import locked, standalone_copy, write_atomically
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.mirrors.base import MIRRORS, Mirror, tracking_error
from ratchet.tracking.mirrors.mlflow.arm import metrics_digest
from ratchet.tracking.mirrors.payload import (
    final_metrics,
    metric_key,
    point_metrics,
    read_hyper_params,
    run_note,
)

if TYPE_CHECKING:
    from wandb import Run

    from ratchet.tracking.metrics import MetricPoint
    from ratchet.tracking.run_folder import RunFolder


_SECONDS = 20.0
"""Timeout of a server's response, after which the run continues without it."""


class ArmCursor(BaseModel):
    """Progress of the mirror for an arm: number and digest of sent points, offline folders.

    ``generation`` counts replacements of recorded points. W&B cannot delete points, so each
    replacement starts a new W&B run.
    """

    generation: int = 0
    sent: int = 0
    digest: str = ""
    status: str = ""
    report: str = ""
    folders: list[str] = Field(default_factory=list)


class Cursor(BaseModel):
    """Progress of the mirror for a run, offline or online."""

    mode: str
    arms: dict[str, ArmCursor] = Field(default_factory=dict)


@MIRRORS.register("wandb")
class WandbMirror(Mirror):
    """Write one W&B run for each arm of a run.

    Parameters
    ----------
    mode
        ``offline`` or ``online``.
    """

    title = "W&B"
    packages = ("wandb",)
    files = ("wandb",)

    def __init__(self, mode: str) -> None:
        super().__init__(mode)
        self.live = mode == "online"

    @classmethod
    def choose_place(cls, tracking_uri: str) -> str:
        """Return ``WANDB_MODE``; ``offline``, which sends no data, when not set."""
        return os.environ.get("WANDB_MODE", "offline")

    def sync(self, folder: RunFolder) -> str:
        """Sync the W&B runs with a run folder; return the id of the experiment's."""
        if self.place not in ("offline", "online"):
            raise TrackingError(
                f"WANDB_MODE is {self.place!r}: expected 'offline' or 'online'. Remove wandb from"
                " settings.mirrors to disable this mirror."
            )
        wandb_folder = folder.path / "wandb"
        wandb_folder.mkdir(exist_ok=True)
        with locked(wandb_folder / ".lock"):
            # store W&B's files in Ratchet's home and disable error reports, unless configured
            files = folder.home.resolve() / "wandb"
            for name in ("DATA", "CACHE", "CONFIG"):
                os.environ.setdefault(f"WANDB_{name}_DIR", str(files))
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
            try:
                from wandb.errors import Error
            except ImportError as error:
                raise tracking_error("W&B", error) from error
            try:
                return self._sync(folder, wandb_folder)
            except (Error, OSError) as error:
                raise tracking_error(f"W&B ({self.place})", error) from error

    def _sync(self, folder: RunFolder, wandb_folder: Path) -> str:
        cursor = _read(wandb_folder / "ratchet.json", self.place)
        points = folder.read_metrics()
        ids = []
        for arm in [MAIN_ARM, *sorted(folder.manifest.arms.keys() - {MAIN_ARM})]:
            arm_points = [point for point in points if point.arm == arm]
            state = cursor.arms.setdefault(arm, ArmCursor())
            ids.append(_Arm(folder, arm, state, self.place).sync(arm_points))
            write_atomically(wandb_folder / "ratchet.json", cursor.model_dump_json(indent=1))
        return ids[0]


class _Arm:
    """Sync one arm to its W&B run; update the cursor in place."""

    def __init__(self, folder: RunFolder, arm: str, cursor: ArmCursor, mode: str) -> None:
        self._folder, self._arm, self._cursor, self._mode = folder, arm, cursor, mode
        self._manifest = folder.manifest

        run_id = folder.run_id
        self._name = run_id if arm == MAIN_ARM else f"{run_id}-{arm}"

    @property
    def _id(self) -> str:
        number = self._cursor.generation
        return f"{self._name}-v{number + 1}" if number else self._name

    def sync(self, points: list[MetricPoint]) -> str:
        """Write new points; return the W&B run's id."""
        cursor = self._cursor
        is_replaced = len(points) < cursor.sent or _digest(points[: cursor.sent]) != cursor.digest
        if cursor.sent and is_replaced:  # start a new W&B run
            fresh = ArmCursor(generation=cursor.generation + 1)
            for name in ArmCursor.model_fields:
                setattr(cursor, name, getattr(fresh, name))
        self._drop_unfinished()
        if (cursor.sent, cursor.status) == (len(points), self._manifest.status):
            return self._id
        run = self._open()
        kinds = self._manifest.kinds
        begin = run.starting_step if self._mode == "online" else cursor.sent
        for step, point in enumerate(points[begin:], begin):
            values = {key: value for key, _, value, _ in point_metrics([point], kinds)}
            run.log({**values, "iteration": point.iteration}, step=step)
        self._describe(run)
        run.finish(exit_code=0 if self._manifest.status == "completed" else 1)
        if self._mode == "offline":
            cursor.folders.append(Path(run.dir).parent.name)
        cursor.sent, cursor.digest = len(points), _digest(points)
        cursor.status = self._manifest.status
        return self._id

    def _drop_unfinished(self) -> None:
        """Delete offline folders of this arm that are incomplete or obsolete."""
        arm_pattern = re.compile(rf"offline-run-\d+_\d+-{re.escape(self._name)}(-v\d+)?")
        for path in (self._folder.path / "wandb").glob("offline-run-*"):
            if arm_pattern.fullmatch(path.name) and path.name not in self._cursor.folders:
                shutil.rmtree(path)

    def _open(self) -> Run:
        import wandb

        manifest = self._manifest
        tags = manifest.settings.get("tags") or {}
        run = wandb.init(
            project=_project(manifest.experiment_name),
            id=self._id,
            name=self._id,
            group=manifest.parent_run_id or manifest.run_id,
            job_type=self._arm,
            notes=run_note(manifest, self._arm),
            tags=[f"{name}={value}"[:64] for name, value in tags.items()],
            config=read_hyper_params(manifest, self._arm),
            dir=self._folder.path,
            mode="online" if self._mode == "online" else "offline",
            resume="allow",
            reinit="create_new",
            allow_val_change=True,
            settings=_settings(ended=manifest.status != "running"),
        )
        run.define_metric("iteration", hidden=True)
        run.define_metric("*", step_metric="iteration")
        return run

    def _describe(self, run: Run) -> None:
        """Log the results and, for the main arm, the report."""
        import wandb

        tables = [table for table in self._folder.read_tables() if table.arm == self._arm]
        run.summary.update({key: value for key, _, value, _ in final_metrics(tables, 0)})
        report = self._folder.report_path
        if self._arm != MAIN_ARM or not report.exists():
            return
        digest = hash_file(report)
        if self._cursor.report != digest:
            artifact = wandb.Artifact(_project(f"{self._id}-report"), type="report")
            with standalone_copy(report) as file:
                artifact.add_file(str(file))
            run.log_artifact(artifact)
            self._cursor.report = digest


def _settings(*, ended: bool) -> Any:  # noqa: ANN401 -- wandb.Settings
    """Return settings without collection of machine data and without waiting for logins."""
    import wandb

    return wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        init_timeout=_SECONDS,
        login_timeout=1.0,
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        x_update_finish_state=ended,
    )


def _read(path: Path, mode: str) -> Cursor:
    """Read the progress of the mirror; an empty one if it is lost."""
    try:
        cursor = Cursor.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return Cursor(mode=mode)
    return cursor if cursor.mode == mode else Cursor(mode=mode)


def _digest(points: list[MetricPoint]) -> str:
    return metrics_digest(point_metrics(points)) if points else ""


def _project(name: str) -> str:
    """Return a name that W&B accepts."""
    return metric_key(name).translate(str.maketrans("/\\#?%: ", "-------"))[:120]
