"""``RunView``: a snapshot of a run's status, read from its folder by any process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ratchet.reports.costs import read_billed
from ratchet.tracking.live_file import Live, read_live, seconds_since_boot, stalls_of
from ratchet.tracking.metrics import metrics_that_matter
from ratchet.tracking.stage_kinds import AWAIT_FINE_TUNE_JOBS

if TYPE_CHECKING:
    from ratchet.tracking.manifest import RunManifest, RunStatus
    from ratchet.tracking.metrics import MetricPoint
    from ratchet.tracking.run_folder import RunFolder

StageState = Literal["cached", "computed", "under way", "stalled"]
_NUM_EVENTS = 3
_INTERVAL_SECONDS = 0.5
PATIENCE_SECONDS = 5.0
"""Seconds that a run may look interrupted, e.g. while its process starts, before it has ended."""


@dataclass(frozen=True)
class StageView:
    """A stage of a run: its state, and its duration in seconds, so far if it is running.

    A "stalled" stage is running, but has reported no progress for unusually long.
    """

    arm: str
    stage: str
    iteration: int
    state: StageState
    seconds: float


@dataclass(frozen=True)
class ArmView:
    """An arm: finished iterations, their configured total if any, and the latest metrics."""

    name: str
    iterations: int
    total: int | None
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class RunView:
    """Status of a run.

    Attributes
    ----------
    seconds
        Duration from its creation until its end, or until now.
    doing
        Its current activity, such as the fine-tuning jobs that it waits for.
    done, expected
        Iterations of the loops that its current process has started.
    metrics
        Current metrics of its loop.
    billed, budget
        Amount billed by services as of its last stage, and the maximum amount.
    awaits_jobs
        Whether it waits for fine-tuning jobs.
    events
        The latest events, oldest first.
    """

    run_id: str
    status: RunStatus
    error: str | None
    seconds: float
    arms: tuple[ArmView, ...]
    stages: tuple[StageView, ...]
    doing: str
    done: int
    expected: int
    metrics: Mapping[str, float]
    billed: str | None
    budget: float | None
    awaits_jobs: bool
    events: tuple[str, ...]

    @property
    def has_ended(self) -> bool:
        """Whether no process runs it."""
        return self.status != "running"


def view_run(folder: RunFolder) -> RunView:
    """Read the current status of a run."""
    manifest, status = folder.manifest, folder.status
    live = read_live(folder.path) if status == "running" else None
    points = folder.read_metrics()
    (billed,) = read_billed([folder]) or (None,)
    budget = manifest.settings.get("budget")
    return RunView(
        run_id=folder.run_id,
        status=status,
        error=manifest.error,
        seconds=max(0.0, (manifest.finished or time.time()) - manifest.created),
        arms=tuple(_arm(name, manifest, points) for name in manifest.arms),
        stages=tuple(_stages(manifest, live)),
        doing=live["doing"] if live else "",
        done=live["done"] if live else 0,
        expected=live["expected"] if live else 0,
        metrics=metrics_that_matter(live["metrics"]) if live else {},
        billed=billed.text if billed else None,
        budget=budget if isinstance(budget, int | float) else None,
        awaits_jobs=live is not None
        and any(s["stage"] == AWAIT_FINE_TUNE_JOBS.name for s in live["stages"]),
        events=tuple(str(event["message"]) for event in folder.read_events()[-_NUM_EVENTS:]),
    )


def watch_run(
    folder: RunFolder,
    *,
    seconds: float = _INTERVAL_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    patience: float = PATIENCE_SECONDS,
) -> Iterator[RunView]:
    """Yield a run's status every ``seconds`` until it has ended; the last one is final."""
    waited = 0.0
    while True:
        view = view_run(folder)
        waited = waited + seconds if view.status == "interrupted" else 0.0
        yield view
        if view.has_ended and not 0 < waited <= patience:
            return
        sleep(seconds)


def _arm(name: str, manifest: RunManifest, points: list[MetricPoint]) -> ArmView:
    latest: dict[str, float] = {}
    for point in points:
        if point.arm == name:
            latest = metrics_that_matter(point.values) or latest
    configured = manifest.arms[name].get("rl", {}).get("num_iterations")
    total = configured if isinstance(configured, int) else None
    return ArmView(name, manifest.learned_iterations(name), total, latest)


def _stages(manifest: RunManifest, live: Live | None) -> Iterator[StageView]:
    running = {(s["arm"], s["stage"], s["iteration"]) for s in live["stages"]} if live else set()
    for record in manifest.stages:
        position = (record.arm, record.stage, record.iteration)
        if position not in running:
            state: StageState = "cached" if record.hit else "computed"
            yield StageView(*position, state, record.seconds)
    stalls = stalls_of(live, manifest.stages, manifest.settings.get("stall_seconds"))
    stalled = {(stall.arm, stall.name, stall.iteration) for stall in stalls}
    now = seconds_since_boot(live) if live else 0.0
    for stage in live["stages"] if live else ():
        position = (stage["arm"], stage["stage"], stage["iteration"])
        live_state: StageState = "stalled" if position in stalled else "under way"
        yield StageView(*position, live_state, now - stage["since"])
