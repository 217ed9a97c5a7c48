"""Observers of stages: the base class, and ``RunObserver``, which notifies listeners.

Stages use the base class, which ignores all calls. A run's observer passes each call as a
:class:`RunEvent` to the run's folder, Prefect's events and OpenTelemetry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ratchet.tracking.live_file import LiveFile, StageRef, Stall, StallMonitor, usual_seconds
from ratchet.tracking.logs import LOGGED_ELSEWHERE
from ratchet.tracking.run_events import Kind, Listener, RunEvent
from ratchet.tracking.telemetry import open_telemetry

if TYPE_CHECKING:
    from ratchet.tracking.run_folder import RunFolder


logger = logging.getLogger(__name__)

Around: TypeAlias = Callable[[StageRef], AbstractContextManager[object]]


class StageObserver:
    """Observer of stage events; the base class ignores them."""

    def under_way(self, call: StageRef) -> AbstractContextManager[object]:
        """Return the context manager around the computation of a stage."""
        return nullcontext()

    def waiting(self, call: StageRef, holder: str) -> None:
        """Handle that another process computes the stage and this run waits for it."""

    def waited(self, call: StageRef, seconds: float) -> None:
        """Handle the end of the wait."""

    def failed(self, call: StageRef, error: Exception, *, again: bool) -> None:
        """Handle a failed attempt; ``again`` if it is retried."""


@dataclass
class RunObserver(StageObserver):
    """Observer of a run's stages.

    Attributes
    ----------
    stall_seconds
        ``settings.stall_seconds``.
    listeners
        Functions called with each event.
    around
        Context managers around the computation of each stage.
    """

    folder: RunFolder
    live: LiveFile
    stall_seconds: float | None = None
    listeners: list[Listener] = field(default_factory=list)
    around: list[Around] = field(default_factory=list)

    def tell(
        self,
        kind: Kind,
        message: str = "",
        call: StageRef | None = None,
        *,
        seconds: float | None = None,
        iterations: int = 0,
        usage: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Notify all listeners of an event; their errors are only logged."""
        event = RunEvent(
            kind,
            self.folder.run_id,
            message,
            arm=call.arm if call else "",
            stage=call.name if call else "",
            iteration=call.iteration if call else 0,
            seconds=seconds,
            iterations=iterations,
            usage=usage,
        )
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:  # listeners must not end the run
                logger.exception("notifying of %s", kind)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Report the run's start and end, and stalled stages, around the block."""
        run = self.folder.manifest
        telemetry = open_telemetry(
            {"ratchet.run": run.run_id, "ratchet.experiment": run.name}, self.live
        )
        if telemetry is not None:
            self.listeners.append(telemetry.hear)
            self.around.append(telemetry.span)
        watch = StallMonitor(self.live.under_way, self._usual, self.stall_seconds, self._stalled)
        self.tell("run.started")
        try:
            yield
        finally:
            watch.close()
            self._tell_of_end()
            if telemetry is not None:
                telemetry.close()

    def _tell_of_end(self) -> None:
        run = self.folder.manifest
        if run.status == "running":  # killed without a status
            return
        level = logging.ERROR if run.status == "failed" else logging.INFO
        logger.log(level, "run %s %s", run.run_id, run.status, extra=LOGGED_ELSEWHERE)
        self.tell(cast(Kind, f"run.{run.status}"), run.error or "")

    @contextmanager
    def under_way(self, call: StageRef) -> Iterator[None]:
        """Mark a stage as running within the block."""
        with ExitStack() as entered:
            entered.enter_context(self.live.stage(call))
            for around in self.around:
                entered.enter_context(around(call))
            self.tell("stage.started", call=call)
            yield

    def waiting(self, call: StageRef, holder: str) -> None:
        """Record that another run computes the same stage and this one waits for it."""
        self.folder.log_event("waiting", f"waits for a stage that {holder} computes.")

    def waited(self, call: StageRef, seconds: float) -> None:
        """Report the duration of the wait."""
        self.tell("stage.waited", call=call, seconds=seconds)

    def failed(self, call: StageRef, error: Exception, *, again: bool) -> None:
        """Record a failed attempt."""
        text = f"{type(error).__name__}: {error}"
        kind: Kind = "stage.retried" if again else "stage.failed"
        self.tell(kind, text, call)
        if again:  # the run's end reports the last failure
            stage_label = f"{call.arm} {call.name} {call.iteration}"
            self.folder.log_event("retried", f"{stage_label} failed and is retried: {text}")

    def _usual(self) -> dict[str, float]:
        return usual_seconds(self.folder.manifest.stages)

    def _stalled(self, stall: Stall) -> None:
        run = self.folder.run_id
        advice = f"`ratchet cancel {run}` ends it, `ratchet resume {run}` continues it"
        logger.warning("%s: %s", stall, advice)
        self.folder.log_event("stalled", f"{stall}.")
        self.tell("stage.stalled", f"{stall}.", stall, seconds=stall.seconds)
