"""``.live.json``: current activity of a run, for other processes; and stalled stages.

The file exists while the run does. The run does not read it, and it is not flushed to the disk. A
stage is stalled if it has given no sign of life for unusually long: :class:`StallMonitor` checks
this in the run's process, other processes by the file, even if that process is frozen.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypedDict

from ratchet.tracking.boot_clock import boot_id, boot_seconds
from ratchet.tracking.logs import current_log_context, log_context
from ratchet.tracking.manifest import StageRecord

LIVE_FILE = ".live.json"
_SELDOM_SECONDS = 0.5


class StageRef(Protocol):
    """Identity of a stage within a run."""

    @property
    def arm(self) -> str: ...  # noqa: D102 -- see the class

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def iteration(self) -> int: ...  # noqa: D102


class RunningStage(TypedDict):
    """A running stage, its start and its last sign of life (seconds since the boot)."""

    arm: str
    stage: str
    iteration: int
    since: float
    sign: float


class Live(TypedDict):
    """Content of the file; ``done`` of ``expected`` iterations in all loops so far.

    It was written at ``time`` (seconds since 1970), ``clock`` seconds since the ``boot``.
    """

    time: float
    boot: str
    clock: float
    stages: list[RunningStage]
    doing: str
    done: int
    expected: int
    metrics: dict[str, float]


class LiveFile:
    """Update the file from progress callbacks of loops and from stages.

    A stage's start and end are written immediately, progress every half second at most. Every
    progress call is a sign of life of its stage, or of all stages if it has none.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / LIVE_FILE
        self._lock = threading.Lock()
        self._clock = clock
        self._written = float("-inf")
        self._sign = 0.0
        self._live = Live(
            time=0.0,
            boot=boot_id(),
            clock=0.0,
            stages=[],
            doing="",
            done=0,
            expected=0,
            metrics={},
        )
        self.close()  # a killed process may have left one

    @contextmanager
    def stage(self, call: StageRef) -> Iterator[None]:
        """Mark a stage as running within the block."""
        now = boot_seconds()
        running_stage = RunningStage(
            arm=call.arm, stage=call.name, iteration=call.iteration, since=now, sign=now
        )
        with self._lock:
            self._live["stages"].append(running_stage)
            self._write()
        try:
            yield
        finally:
            with self._lock:
                self._live["stages"].remove(running_stage)
                self._write()

    def now(self) -> Live:
        """Return the current content."""
        with self._lock:
            return Live(**self._live)

    def under_way(self) -> list[RunningStage]:
        """Return the running stages."""
        with self._lock:
            return [stage.copy() for stage in self._live["stages"]]

    @property
    def last_sign(self) -> float:
        """Time of the last progress call (seconds since 1970); 0 before."""
        return self._sign

    def start(self, total: int) -> None:
        """Start a loop."""
        with self._lock:
            self._live["expected"] = max(self._live["expected"], self._live["done"]) + total
            self._heard()

    def describe(self, description: str) -> None:
        """Set the description of the current activity."""
        with self._lock:
            self._live["doing"] = description
            self._heard()

    def advance(self, steps: int) -> None:
        """Count finished iterations."""
        with self._lock:
            self._live["done"] += steps
            self._heard()

    def show(self, metrics: Mapping[str, float]) -> None:
        """Set the latest metrics."""
        with self._lock:
            self._live["metrics"] = {name: float(value) for name, value in metrics.items()}
            self._heard()

    def finish(self) -> None:
        """End a loop; others may follow."""

    def close(self) -> None:
        """Remove the file at the run's end."""
        self._path.unlink(missing_ok=True)

    def _heard(self) -> None:
        self._sign = time.time()
        now = boot_seconds()
        context = current_log_context()
        current_stage = context.arm, context.stage, context.iteration
        for stage in self._live["stages"]:
            if (
                not context.stage
                or (stage["arm"], stage["stage"], stage["iteration"]) == current_stage
            ):
                stage["sign"] = now
        if self._clock() - self._written >= _SELDOM_SECONDS:
            self._write()

    def _write(self) -> None:
        self._written = self._clock()
        self._live["time"] = self._sign = time.time()
        self._live["clock"] = boot_seconds()
        temporary_path = self._path.with_name(f"{LIVE_FILE}.{os.getpid()}.tmp")
        try:
            temporary_path.write_text(json.dumps(self._live), encoding="utf-8")
            temporary_path.replace(self._path)
        except OSError:  # a full disk does not end the run here
            temporary_path.unlink(missing_ok=True)


def read_live(folder: Path) -> Live | None:
    """Read a run's current activity; None if it has no file."""
    try:
        live: Live = json.loads((folder / LIVE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return live


def seconds_since_boot(live: Live) -> float:
    """Return the current seconds since the boot of the run's machine.

    On another machine they are derived from the time at which the file was written.
    """
    if live["boot"] == boot_id():
        return boot_seconds()
    return live["clock"] + max(0.0, time.time() - live["time"])


logger = logging.getLogger(__name__)

STALL_FACTOR = 5.0
"""Allowed silence as a multiple of the usual duration of such a stage."""
STALL_SECONDS = 600.0
"""Minimum allowed silence in seconds, unless the settings give it."""
_LOOKS = 4  # checks within the allowed silence
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Stall:
    """A stage without a sign of life for ``seconds``; ``usual`` is its usual duration."""

    arm: str
    name: str
    iteration: int
    seconds: float
    usual: float | None

    def __str__(self) -> str:
        usual = f"; such a stage takes {self.usual:.1f} s" if self.usual is not None else ""
        return (
            f"{self.arm} {self.name} {self.iteration} has given no sign of life for"
            f" {self.seconds:.0f} s{usual}"
        )


def usual_seconds(records: Iterable[StageRecord]) -> dict[str, float]:
    """Return the median duration of a run's completed stages, by name."""
    seconds: dict[str, list[float]] = {}
    for record in records:
        seconds.setdefault(record.stage, []).append(record.seconds)
    return {stage: statistics.median(values) for stage, values in seconds.items()}


def find_stalls(
    stages: Iterable[RunningStage],
    usual: Mapping[str, float],
    limit: float | None = None,
    now: float | None = None,
) -> list[Stall]:
    """Return the running stages that are stalled.

    Parameters
    ----------
    usual
        Usual durations by name; see :func:`usual_seconds`.
    limit
        ``settings.stall_seconds``; by default derived from ``usual``.
    now
        Seconds since the boot of the stages' machine; by default of this one.
    """
    now = boot_seconds() if now is None else now
    stalls = []
    for stage in stages:
        known = usual.get(stage["stage"])
        longest = limit or max(STALL_SECONDS, STALL_FACTOR * (known or 0.0))
        silent = now - stage["sign"]
        if silent > longest:
            stalls.append(Stall(stage["arm"], stage["stage"], stage["iteration"], silent, known))
    return stalls


def stalls_of(
    live: Live | None, records: Iterable[StageRecord], limit: float | None
) -> list[Stall]:
    """Return the stalled stages according to a run's folder."""
    if live is None:
        return []
    now = seconds_since_boot(live)
    return find_stalls(live["stages"], usual_seconds(records), limit, now)


class StallMonitor:
    """Monitor the stages of a run in a thread, and report each stalled one once.

    Parameters
    ----------
    under_way
        Returns the running stages.
    usual
        Returns usual durations by name; called only if a stage is silent.
    limit
        ``settings.stall_seconds``.
    tell
        Called once for each stalled stage, again after it has continued.
    """

    def __init__(
        self,
        under_way: Callable[[], list[RunningStage]],
        usual: Callable[[], Mapping[str, float]],
        limit: float | None,
        tell: Callable[[Stall], None],
    ) -> None:
        self._under_way, self._usual, self._limit, self._tell = under_way, usual, limit, tell
        self._told: set[tuple[str, str, int]] = set()
        self._ended = threading.Event()
        watch = partial(copy_context().run, self._watch)  # keeps the run's log context
        self._thread = threading.Thread(target=watch, name="stall-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop monitoring."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        pause = min((self._limit or STALL_SECONDS) / _LOOKS, _LONGEST_PAUSE)
        while not self._ended.wait(pause):
            try:
                self.look()
            except Exception:  # monitoring must not end the run
                logger.exception("checking for stalled stages")

    def look(self) -> None:
        """Check once."""
        stages = self._under_way()
        stalls = find_stalls(stages, {}, self._limit)
        if stalls:  # by the smallest limit: only then are usual durations read
            stalls = find_stalls(stages, self._usual(), self._limit)
        standing = {(stall.arm, stall.name, stall.iteration): stall for stall in stalls}
        for position in self._told & {(s["arm"], s["stage"], s["iteration"]) for s in stages}:
            if position not in standing:
                with _logged_at(position):
                    logger.info("%s %s %s continues", *position)
        for position in standing.keys() - self._told:
            with _logged_at(position):
                self._tell(standing[position])
        self._told = set(standing)


def _logged_at(position: tuple[str, str, int]) -> AbstractContextManager[None]:
    arm, stage, iteration = position
    return log_context(arm=arm, stage=stage, iteration=iteration)
