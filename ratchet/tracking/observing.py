"""``RunObserver``: what a run's stages do, told to whoever wants to hear of it.

Stages know the base class alone, which does nothing. A run's own passes everything on, each as a
:class:`Happening`: to the run's folder, to Prefect's events, to OpenTelemetry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ratchet.tracking.live_file import LiveFile, NamedStage
from ratchet.tracking.logs import SAID_ELSEWHERE
from ratchet.tracking.stalls import Stall, StallWatch, usual_seconds
from ratchet.tracking.telemetry import open_telemetry

if TYPE_CHECKING:
    from ratchet.tracking.run_folder import RunFolder

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal[
    "run.started",
    "run.completed",
    "run.failed",
    "run.interrupted",
    "run.cancelled",
    "run.pruned",
    "stage.started",
    "stage.made",
    "stage.found",
    "stage.retried",
    "stage.failed",
    "stage.waited",
    "stage.stalled",
]
"""What may happen. A stage that is "retried" has failed and is tried again; one that has "waited"
has done so for whoever else makes it."""


@dataclass(frozen=True)
class Happening:
    """Something that has happened to a run, or to one of its stages.

    Attributes
    ----------
    kind
        What it is.
    message
        It in words.
    arm, stage, iteration
        Which stage; empty if it is about the whole run.
    seconds
        How long the stage took, waited, or has given no sign.
    iterations
        How many training iterations are done with it.
    usage
        What services were asked for by the stage, a row for each agent and model.
    """

    kind: Kind
    run: str
    message: str = ""
    arm: str = ""
    stage: str = ""
    iteration: int = 0
    seconds: float | None = None
    iterations: int = 0
    usage: Sequence[dict[str, Any]] = ()

    @property
    def outcome(self) -> str:
        """The kind without what it is about, such as "made"."""
        return self.kind.partition(".")[2]


Listener: TypeAlias = Callable[[Happening], None]
Around: TypeAlias = Callable[[NamedStage], AbstractContextManager[object]]


class StageObserver:
    """Hears what stages do; this one does nothing."""

    def under_way(self, call: NamedStage) -> AbstractContextManager[object]:
        """Return what is entered while a stage is made."""
        return nullcontext()

    def waiting(self, call: NamedStage, holder: str) -> None:
        """Hear that somebody else makes the stage, and that this run waits for it."""

    def waited(self, call: NamedStage, seconds: float) -> None:
        """Hear that the waiting is over."""

    def failed(self, call: NamedStage, error: Exception, *, again: bool) -> None:
        """Hear that an attempt has failed, and whether there is another."""


@dataclass
class RunObserver(StageObserver):
    """Hears what the stages of a run do.

    Attributes
    ----------
    stall_seconds
        ``settings.stall_seconds``.
    listeners
        Are told of what happens.
    around
        Are entered around each stage that is made.
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
        call: NamedStage | None = None,
        *,
        seconds: float | None = None,
        iterations: int = 0,
        usage: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Tell all listeners; one that fails ends no run. See :class:`Happening`."""
        happening = Happening(
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
                listener(happening)
            except Exception:  # whoever looks on
                logger.exception("telling of %s", kind)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell of the run's begin and end, and of stages that stand still, while the block runs."""
        run = self.folder.manifest
        telemetry = open_telemetry(
            {"ratchet.run": run.run_id, "ratchet.experiment": run.name}, self.live
        )
        if telemetry is not None:
            self.listeners.append(telemetry.hear)
            self.around.append(telemetry.span)
        watch = StallWatch(self.live.under_way, self._usual, self.stall_seconds, self._stalled)
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
        if run.status == "running":  # killed by somebody who does not say so
            return
        level = logging.ERROR if run.status == "failed" else logging.INFO
        logger.log(level, "run %s %s", run.run_id, run.status, extra=SAID_ELSEWHERE)
        self.tell(cast(Kind, f"run.{run.status}"), run.error or "")

    @contextmanager
    def under_way(self, call: NamedStage) -> Iterator[None]:
        """Say that a stage is under way while the block runs."""
        with ExitStack() as entered:
            entered.enter_context(self.live.stage(call))
            for around in self.around:
                entered.enter_context(around(call))
            self.tell("stage.started", call=call)
            yield

    def waiting(self, call: NamedStage, holder: str) -> None:
        """Record that another run makes the same stage, and that this one waits for it."""
        self.folder.log_event("waiting", f"waits for a stage that {holder} makes.")

    def waited(self, call: NamedStage, seconds: float) -> None:
        """Tell how long."""
        self.tell("stage.waited", call=call, seconds=seconds)

    def failed(self, call: NamedStage, error: Exception, *, again: bool) -> None:
        """Record that an attempt has failed."""
        text = f"{type(error).__name__}: {error}"
        kind: Kind = "stage.retried" if again else "stage.failed"
        self.tell(kind, text, call)
        if again:  # the last one is the run's end, which says so
            place = f"{call.arm} {call.name} {call.iteration}"
            self.folder.log_event("retried", f"{place} failed and is tried again: {text}")

    def _usual(self) -> dict[str, float]:
        return usual_seconds(self.folder.manifest.stages)

    def _stalled(self, stall: Stall) -> None:
        run = self.folder.run_id
        advice = f"`ratchet cancel {run}` ends it, `ratchet resume {run}` goes on"
        logger.warning("%s: %s", stall, advice)
        self.folder.log_event("stalled", f"{stall}.")
        self.tell("stage.stalled", f"{stall}.", stall, seconds=stall.seconds)
