"""Artifacts and events of a flow run in Prefect's UI: summary, results, progress.

The three artifacts are written to persistent servers only, and updated if the flow run is retried
or resumed. A server that rejects them does not end the run.

Each event of the run or a stage is also a Prefect event for automations, such as
``ratchet.stage.stalled`` about ``ratchet.stage.RUN.ARM.STAGE.ITERATION``. Its related resources
are the run, ``ratchet.run.RUN``, and, added by Prefect, the flow run and the task run.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL

from flows.runs.result import result_table
from ratchet.errors import RatchetError
from ratchet.tracking.logs import kept_log
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.urls import within_page

if TYPE_CHECKING:
    from flows.runs.setup import ExperimentRun
    from ratchet.tracking.run_events import RunEvent

logger = logging.getLogger(__name__)

SECONDS = 5.0
"""Minimum interval between updates of the progress."""
_MAX_SHARE = 0.99
"""Maximum progress of a running run, whose work outside loops is not counted."""


@asynccontextmanager
async def observed(run: ExperimentRun) -> AsyncIterator[None]:
    """Write the run's log and events, and its artifacts if Prefect's server is persistent."""
    flow_run_id = flow_run.get_id()
    is_persistent = flow_run_id is not None and PREFECT_UI_URL.value()
    artifacts = PrefectArtifacts(run, UUID(flow_run_id)) if is_persistent else None
    if artifacts is not None:
        artifacts.start()
    try:
        with kept_log(run.folder.path, run.folder.run_id), run.observer.told():
            yield
    finally:
        if artifacts is not None:
            artifacts.close()


class PrefectArtifacts:
    """Artifacts of a flow run; its current progress is read from the run's live file."""

    def __init__(self, run: ExperimentRun, flow_run_id: UUID) -> None:
        self._run, self._flow_run_id = run, flow_run_id
        self._name = re.sub(r"[^a-z0-9]+", "-", run.folder.run_id.lower()).strip("-")
        self._ids: dict[str, UUID] = {}
        self._expected = 0
        self._ended = threading.Event()
        self._context = copy_context()
        self._thread = threading.Thread(target=self._update, name="prefect-artifacts", daemon=True)

    def start(self) -> None:
        """Start to update the progress and to emit events."""
        self._run.observer.listeners.append(self.emit)
        self._thread.start()

    def close(self) -> None:
        """Write the final status and results."""
        self._ended.set()
        self._thread.join()
        folder = self._run.folder
        share = 1.0 if folder.manifest.status == "completed" else self._share()
        table = result_table(folder)
        self._put("summary", "markdown", _summary(self._run), "Final status of the run")
        if table.rows:
            rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
            self._put("results", "table", json.dumps(rows), table.title)
        self._put("progress", "progress", round(100 * share, 1), str(folder.manifest.status))

    def emit(self, event: RunEvent) -> None:
        """Emit an event, related to the flow run also if called from another thread."""
        if FlowRunContext.get() is None:
            self._context.copy().run(_emit, event)
        else:
            _emit(event)

    def _update(self) -> None:
        """Update the progress every few seconds if it has changed."""
        written: tuple[float, str] | None = None
        while not self._ended.wait(SECONDS):
            if written is None:
                self._count_expected()
                self._put("summary", "markdown", _summary(self._run), "Where to look")
            progress = (round(100 * self._share(), 1), self._run.live.now()["doing"])
            if progress != written:
                self._put("progress", "progress", *progress)
                written = progress

    def _count_expected(self) -> None:
        """Count the iterations of all stages that are not cached, started or not."""
        from flows.planning.plan import remaining_steps

        try:
            left = remaining_steps(self._run.experiment).total()
        except RatchetError as error:
            logger.info("the number of remaining iterations is unknown: %s", error)
            return
        self._expected = self._run.live.now()["done"] + left

    def _share(self) -> float:
        live = self._run.live.now()
        return min(live["done"] / max(live["expected"], self._expected, 1), _MAX_SHARE)

    def _put(self, kind: str, type_: str, data: Any, description: str) -> None:  # noqa: ANN401 -- JSON
        """Create or update an artifact of the flow run."""
        key = f"{self._name}-{kind}"
        try:
            with get_client(sync_client=True) as client:
                if not self._ids:
                    of_run = ArtifactFilterFlowRunId(any_=[self._flow_run_id])
                    existing = client.read_artifacts(
                        artifact_filter=ArtifactFilter(flow_run_id=of_run)
                    )
                    self._ids = {str(each.key): each.id for each in existing}
                if key in self._ids:
                    update = ArtifactUpdate(data=data, description=description)
                    client.update_artifact(self._ids[key], update)
                    return
                created = client.create_artifact(
                    ArtifactCreate(
                        key=key,
                        type=type_,
                        data=data,
                        description=description,
                        flow_run_id=self._flow_run_id,
                    )
                )
                self._ids[key] = created.id
        except (httpx.HTTPError, PrefectException) as error:
            logger.info("Prefect rejected the %s of the run: %s", kind, error)


def _emit(event: RunEvent) -> None:
    run = {
        "prefect.resource.id": f"ratchet.run.{event.run}",
        "prefect.resource.name": event.run,
    }
    payload = {"message": event.message}
    if event.seconds is not None:
        payload["seconds"] = f"{event.seconds:.3f}"
    name = f"ratchet.{event.kind}"
    if not event.stage:
        emit_event(name, run, payload=payload)
        return
    position = event.arm, event.stage, str(event.iteration)
    stage = {
        "prefect.resource.id": ".".join(("ratchet.stage", event.run, *position)),
        "prefect.resource.name": " ".join(position),
        **dict(zip(("ratchet.arm", "ratchet.stage", "ratchet.iteration"), position, strict=True)),
    }
    related = [{**run, "prefect.resource.role": "run"}]
    emit_event(name, stage, related=related, payload=payload)


def _summary(run: ExperimentRun) -> str:
    """Return facts, results and links of the run as Markdown."""
    folder = run.folder
    manifest = folder.manifest
    table = result_table(folder)
    main = manifest.arms[MAIN_ARM]
    trainer = main["trainer"]
    facts = {
        "status": manifest.status,
        "experiment": manifest.name,
        "scenario": main["scenario"],
        "protocol": main["interaction_protocol"],
        "trainer": trainer if isinstance(trainer, str) else trainer.get("class_name"),
        "seed": main["seed"],
        "stages": run.result().stage_counts,
        "time in stages": f"{sum(stage.seconds for stage in manifest.stages):.1f} s",
    }
    lines = [f"# {folder.run_id}", *_rows(("", ""), facts.items())]
    if manifest.error:
        lines += ["", f"> {manifest.error}"]
    if table.rows:
        lines += ["", "## Results", *_rows(table.columns, table.rows)]
    lines += ["", "## Where to look", *_links(run)]
    return "\n".join(lines)


def _links(run: ExperimentRun) -> list[str]:
    folder = run.folder
    url = folder.manifest.tracking.get("url")
    links = []
    if url:
        links += [f"- [The run in MLflow]({url}): metrics, report, transcripts, models"]
        links += [f"- [The report]({within_page(url, 'artifacts/report.html')})"]
    if folder.report_path.exists():
        links += [f"- Report: `{folder.report_path}` (`ratchet report {folder.run_id} --open`)"]
    if folder.transcripts_path.exists():
        links += [f"- Transcripts: `{folder.transcripts_path}`"]
    return [*links, f"- Run folder: `{folder.path}`", f"- Resume: `ratchet resume {folder.run_id}`"]


def _rows(columns: Any, rows: Any) -> list[str]:  # noqa: ANN401 -- anything that prints
    cells = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(str(cell).replace('|', '¦') for cell in row)} |" for row in cells]
