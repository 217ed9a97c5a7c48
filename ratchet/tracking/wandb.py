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
from ratchet.tracking.content import (
    file_digest,
    final_metrics,
    metric_key,
    point_metrics,
    read_hyper_params,
    run_note,
)
from ratchet.tracking.failures import tracking_error
from ratchet.tracking.files import locked, write_atomically
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.mlflow.cursor import metrics_digest

if TYPE_CHECKING:
    from wandb import Run

    from ratchet.tracking.metrics import MetricPoint
    from ratchet.tracking.run_folder import RunFolder

_SECONDS = 20.0
"""How long a server may take to answer before the run goes on without it."""


class ArmCursor(BaseModel):
    """What of an arm has arrived: so many points with such a digest, in such offline folders.

    ``generation`` counts how often recorded points were replaced, which W&B cannot forget: the
    next is another W&B run.
    """

    generation: int = 0
    sent: int = 0
    digest: str = ""
    status: str = ""
    report: str = ""
    folders: list[str] = Field(default_factory=list)


class Cursor(BaseModel):
    """What of a run has arrived, offline or online."""

    mode: str
    arms: dict[str, ArmCursor] = Field(default_factory=dict)


class WandbMirror:
    """Writes one W&B run for each arm of a run.

    Parameters
    ----------
    mode
        ``offline`` or ``online``.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self.live = mode == "online"

    def sync(self, folder: RunFolder) -> str:
        """Bring the W&B runs up to a run folder; return the id of the experiment's.

        Raises
        ------
        TrackingError
            If W&B can't be reached, refuses or is switched off.
        """
        if self._mode not in ("offline", "online"):
            raise TrackingError(
                f"WANDB_MODE is {self._mode!r}: expected 'offline' or 'online'. Take wandb out of"
                " settings.mirrors if runs shall not be mirrored there."
            )
        place = folder.path / "wandb"
        place.mkdir(exist_ok=True)
        with locked(place / ".lock"):
            _prepare(folder.home)
            try:
                from wandb.errors import Error
            except ImportError as error:
                raise tracking_error("W&B", error) from error
            try:
                return self._sync(folder, place)
            except (Error, OSError) as error:
                raise tracking_error(f"W&B ({self._mode})", error) from error

    def _sync(self, folder: RunFolder, place: Path) -> str:
        cursor = _read(place / "ratchet.json", self._mode)
        points = folder.read_metrics()
        ids = []
        for arm in [MAIN_ARM, *sorted(folder.manifest.arms.keys() - {MAIN_ARM})]:
            own = [point for point in points if point.arm == arm]
            state = cursor.arms.setdefault(arm, ArmCursor())
            ids.append(_Arm(folder, arm, state, self._mode).sync(own))
            write_atomically(place / "ratchet.json", cursor.model_dump_json(indent=1))
        return ids[0]


class _Arm:
    """Brings one W&B run up to one arm; changes the cursor in place."""

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
        """Write what is new; return the W&B run's id."""
        cursor = self._cursor
        if len(points) < cursor.sent or _digest(points[: cursor.sent]) != cursor.digest:
            self._begin_anew()
        self._drop_unfinished()
        if (cursor.sent, cursor.status) == (len(points), self._manifest.status):
            return self._id
        run = self._open()
        begin = run.starting_step if self._mode == "online" else cursor.sent
        for step, point in enumerate(points[begin:], begin):
            values = {key: value for key, _, value, _ in point_metrics([point])}
            run.log({**values, "iteration": point.iteration}, step=step)
        self._describe(run)
        run.finish(exit_code=0 if self._manifest.status == "completed" else 1)
        if self._mode == "offline":
            cursor.folders.append(Path(run.dir).parent.name)
        cursor.sent, cursor.digest = len(points), _digest(points)
        cursor.status = self._manifest.status
        return self._id

    def _begin_anew(self) -> None:
        """Forget a W&B run that holds values which have since been replaced."""
        if self._cursor.sent:
            fresh = ArmCursor(generation=self._cursor.generation + 1)
            for name in ArmCursor.model_fields:
                setattr(self._cursor, name, getattr(fresh, name))

    def _drop_unfinished(self) -> None:
        """Delete offline folders of this arm that a kill has left, or that no longer count."""
        own = re.compile(rf"offline-run-\d+_\d+-{re.escape(self._name)}(-v\d+)?")
        for path in (self._folder.path / "wandb").glob("offline-run-*"):
            if own.fullmatch(path.name) and path.name not in self._cursor.folders:
                shutil.rmtree(path)

    def _open(self) -> Run:
        import wandb

        manifest = self._manifest
        tags = manifest.settings.get("tags") or {}
        run = wandb.init(
            project=_project(manifest.settings.get("experiment_name") or manifest.name),
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
        """Tell the results and, of the experiment itself, the report."""
        import wandb

        tables = [table for table in self._folder.read_tables() if table.arm == self._arm]
        run.summary.update({key: value for key, _, value, _ in final_metrics(tables, 0)})
        report = self._folder.report_path
        if self._arm != MAIN_ARM or not report.exists():
            return
        digest = file_digest(report)
        if self._cursor.report != digest:
            artifact = wandb.Artifact(_project(f"{self._id}-report"), type="report")
            artifact.add_file(str(report))
            run.log_artifact(artifact)
            self._cursor.report = digest


def _settings(*, ended: bool) -> Any:  # noqa: ANN401 -- wandb.Settings
    """Return settings by which W&B looks at nothing of the machine, and waits for nobody."""
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


def _prepare(home: Path) -> None:
    """Keep W&B's own files in Ratchet's home and its error reports here, unless set otherwise."""
    own = home.resolve() / "wandb"
    for name in ("DATA", "CACHE", "CONFIG"):
        os.environ.setdefault(f"WANDB_{name}_DIR", str(own))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _read(path: Path, mode: str) -> Cursor:
    """Read how far the mirror has come; as if nothing had arrived if that is lost."""
    try:
        cursor = Cursor.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return Cursor(mode=mode)
    return cursor if cursor.mode == mode else Cursor(mode=mode)


def _digest(points: list[MetricPoint]) -> str:
    return metrics_digest(point_metrics(points)) if points else ""


def _project(name: str) -> str:
    """Make a name that W&B takes."""
    return metric_key(name).translate(str.maketrans("/\\#?%: ", "-------"))[:120]
