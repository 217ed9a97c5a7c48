"""What a flow run's page in Prefect's UI shows beside its graph: progress, results, events.

Three artifacts of the flow run, where a server lasts in which somebody may look at them. Those of a
flow run that is retried or resumed are brought up to date. That a server does not take them ends
no run.

And an event for whatever happens to the run or a stage, which automations can heed, such as
``ratchet.stage.stalled`` about ``ratchet.stage.RUN.ARM.STAGE.ITERATION``. Related to it are the
run, ``ratchet.run.RUN``, and, as Prefect adds by itself, the flow run and the task run.
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

from flows.runs.result_table import result_table
from ratchet.errors import RatchetError
from ratchet.tracking.logs import kept_log
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.urls import within_page

if TYPE_CHECKING:
    from flows.runs.setup import ExperimentRun
    from ratchet.tracking.observing import Happening

logger = logging.getLogger(__name__)

SECONDS = 5.0
"""How often the progress is told, at most."""
_LEFT_OVER = 0.99
"""What progress says at most while stages are made: of what no loop counts, nothing is known."""


@asynccontextmanager
async def observed(run: ExperimentRun) -> AsyncIterator[None]:
    """Keep the run's log, tell those who look on, and show it in Prefect if its server lasts."""
    flow_run_id = flow_run.get_id()
    is_lasting = flow_run_id is not None and PREFECT_UI_URL.value()
    page = PrefectPage(run, UUID(flow_run_id)) if is_lasting else None
    if page is not None:
        page.begin()
    try:
        with kept_log(run.folder.path, run.folder.run_id), run.observer.told():
            yield
    finally:
        if page is not None:
            page.end()


class PrefectPage:
    """The artifacts of a flow run; what it does right now is the run's live file's to know."""

    def __init__(self, run: ExperimentRun, flow_run_id: UUID) -> None:
        self._run, self._flow_run_id = run, flow_run_id
        self._name = re.sub(r"[^a-z0-9]+", "-", run.folder.run_id.lower()).strip("-")
        self._known: dict[str, UUID] = {}
        self._expected = 0
        self._ended = threading.Event()
        self._of_the_flow_run = copy_context()
        self._thread = threading.Thread(target=self._tell, name="prefect-page", daemon=True)

    def begin(self) -> None:
        """Begin to tell the progress, and what happens."""
        self._run.observer.listeners.append(self.hear)
        self._thread.start()

    def end(self) -> None:
        """Tell how it has ended, with the results."""
        self._ended.set()
        self._thread.join()
        folder = self._run.folder
        share = 1.0 if folder.manifest.status == "completed" else self._share()
        table = result_table(folder)
        self._put("summary", "markdown", _summary(self._run), "How the run has ended")
        if table.rows:
            rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
            self._put("results", "table", json.dumps(rows), table.title)
        self._put("progress", "progress", round(100 * share, 1), str(folder.manifest.status))

    def hear(self, happening: Happening) -> None:
        """Emit an event; from another thread, it is related to the flow run all the same."""
        if FlowRunContext.get() is None:
            self._of_the_flow_run.copy().run(_emit, happening)
        else:
            _emit(happening)

    def _tell(self) -> None:
        """Tell the progress every few seconds, where it has changed."""
        told: tuple[float, str] | None = None
        while not self._ended.wait(SECONDS):
            if told is None:
                self._look_ahead()
                self._put("summary", "markdown", _summary(self._run), "Where to look")
            now = (round(100 * self._share(), 1), self._run.live.now()["doing"])
            if now != told:
                self._put("progress", "progress", *now)
                told = now

    def _look_ahead(self) -> None:
        """Expect what all stages have to do that are not stored, rather than the loops so far."""
        from flows.planning.estimates import remaining_iterations

        try:
            left = remaining_iterations(self._run.experiment)
        except RatchetError as error:
            logger.info("how much is left to do is not known: %s", error)
            return
        self._expected = self._run.live.now()["done"] + left

    def _share(self) -> float:
        live = self._run.live.now()
        return min(live["done"] / max(live["expected"], self._expected, 1), _LEFT_OVER)

    def _put(self, kind: str, type_: str, data: Any, description: str) -> None:  # noqa: ANN401 -- JSON
        """Make an artifact, or bring that of the flow run up to date."""
        key = f"{self._name}-{kind}"
        try:
            with get_client(sync_client=True) as client:
                if not self._known:
                    whose = ArtifactFilterFlowRunId(any_=[self._flow_run_id])
                    found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=whose))
                    self._known = {str(each.key): each.id for each in found}
                if key in self._known:
                    update = ArtifactUpdate(data=data, description=description)
                    client.update_artifact(self._known[key], update)
                    return
                made = client.create_artifact(
                    ArtifactCreate(
                        key=key,
                        type=type_,
                        data=data,
                        description=description,
                        flow_run_id=self._flow_run_id,
                    )
                )
                self._known[key] = made.id
        except (httpx.HTTPError, PrefectException) as error:
            logger.info("Prefect did not take the %s of the run: %s", kind, error)


def _emit(happening: Happening) -> None:
    run = {
        "prefect.resource.id": f"ratchet.run.{happening.run}",
        "prefect.resource.name": happening.run,
    }
    payload = {"message": happening.message}
    if happening.seconds is not None:
        payload["seconds"] = f"{happening.seconds:.3f}"
    event = f"ratchet.{happening.kind}"
    if not happening.stage:
        emit_event(event, run, payload=payload)
        return
    place = happening.arm, happening.stage, str(happening.iteration)
    stage = {
        "prefect.resource.id": ".".join(("ratchet.stage", happening.run, *place)),
        "prefect.resource.name": " ".join(place),
        **dict(zip(("ratchet.arm", "ratchet.stage", "ratchet.iteration"), place, strict=True)),
    }
    related = [{**run, "prefect.resource.role": "run"}]
    emit_event(event, stage, related=related, payload=payload)


def _summary(run: ExperimentRun) -> str:
    """Write what the run is, what it came to, and where to look on, in Markdown."""
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
        "stages": f"{run.recorder.made} made, {run.recorder.found} found in the store",
        "time in stages": f"{sum(stage.seconds for stage in manifest.stages):.1f} s",
    }
    lines = [f"# {folder.run_id}", *_rows(("", ""), facts.items())]
    if manifest.error:
        lines += ["", f"> {manifest.error}"]
    if table.rows:
        lines += ["", "## Results", *_rows(table.columns, table.rows)]
    lines += ["", "## Where to look", *_places(run)]
    return "\n".join(lines)


def _places(run: ExperimentRun) -> list[str]:
    folder = run.folder
    url = folder.manifest.tracking.get("url")
    places = []
    if url:
        places += [f"- [The run in MLflow]({url}): metrics, report, transcripts, checkpoints"]
        places += [f"- [The report]({within_page(url, 'artifacts/report.html')})"]
    if folder.report_path.exists():
        places += [f"- Report: `{folder.report_path}` (`ratchet report {folder.run_id} --open`)"]
    if folder.transcripts_path.exists():
        places += [f"- Transcripts: `{folder.transcripts_path}`"]
    return [*places, f"- Run folder: `{folder.path}`", f"- Go on: `ratchet resume {folder.run_id}`"]


def _rows(columns: Any, rows: Any) -> list[str]:  # noqa: ANN401 -- anything that prints
    cells = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(str(cell).replace('|', '¦') for cell in row)} |" for row in cells]
