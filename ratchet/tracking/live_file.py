"""``.live.json``: what a running run does right now, for who watches from another process.

It is there while the run is, says nothing that the run would need, and is not flushed to the disk.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypedDict

from ratchet.tracking.logs import current_place

LIVE_FILE = ".live.json"
_SELDOM_SECONDS = 0.5


class NamedStage(Protocol):
    """What tells a stage from a run's others."""

    @property
    def arm(self) -> str: ...  # noqa: D102 -- see the class

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def iteration(self) -> int: ...  # noqa: D102


class StageUnderWay(TypedDict):
    """A stage that is being made, since when, and when it last gave a sign (seconds since 1970)."""

    arm: str
    stage: str
    iteration: int
    since: float
    sign: float


class Live(TypedDict):
    """What the file says; ``done`` of ``expected`` iterations are those of the loops so far."""

    time: float
    stages: list[StageUnderWay]
    doing: str
    done: int
    expected: int
    metrics: dict[str, float]


class LiveFile:
    """Keeps the file up to date: it hears of a run's loops as a progress bar does, and of stages.

    A stage's begin and end are written at once, what happens within one every half second at most.
    Whatever a loop tells is a sign of life of the stage that it belongs to, or of all, if of none.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / LIVE_FILE
        self._lock = threading.Lock()
        self._clock = clock
        self._written = float("-inf")
        self._sign = 0.0
        self._live = Live(time=0.0, stages=[], doing="", done=0, expected=0, metrics={})
        self.close()  # a process that was killed has left one

    @contextmanager
    def stage(self, call: NamedStage) -> Iterator[None]:
        """Say that a stage is under way while the block runs."""
        now = time.time()
        place = StageUnderWay(
            arm=call.arm, stage=call.name, iteration=call.iteration, since=now, sign=now
        )
        with self._lock:
            self._live["stages"].append(place)
            self._write()
        try:
            yield
        finally:
            with self._lock:
                self._live["stages"].remove(place)
                self._write()

    def now(self) -> Live:
        """Return what the file says, or would."""
        with self._lock:
            return Live(**self._live)

    def under_way(self) -> list[StageUnderWay]:
        """Return the stages that are being made, as they are now."""
        with self._lock:
            return [stage.copy() for stage in self._live["stages"]]

    @property
    def last_sign(self) -> float:
        """When anything was told last (seconds since 1970); 0 before."""
        return self._sign

    def start(self, total: int) -> None:
        """Begin a loop."""
        with self._lock:
            self._live["expected"] = max(self._live["expected"], self._live["done"]) + total
            self._heard()

    def describe(self, description: str) -> None:
        """Name what is done."""
        with self._lock:
            self._live["doing"] = description
            self._heard()

    def advance(self, steps: int) -> None:
        """Count finished iterations."""
        with self._lock:
            self._live["done"] += steps
            self._heard()

    def show(self, metrics: Mapping[str, float]) -> None:
        """Take the latest metrics."""
        with self._lock:
            self._live["metrics"] = {name: float(value) for name, value in metrics.items()}
            self._heard()

    def finish(self) -> None:
        """End a loop; there may be others."""

    def close(self) -> None:
        """Remove the file: nothing is under way any more."""
        self._path.unlink(missing_ok=True)

    def _heard(self) -> None:
        self._sign = time.time()
        place = current_place()
        here = place.arm, place.stage, place.iteration
        for stage in self._live["stages"]:
            if not place.stage or (stage["arm"], stage["stage"], stage["iteration"]) == here:
                stage["sign"] = self._sign
        if self._clock() - self._written >= _SELDOM_SECONDS:
            self._write()

    def _write(self) -> None:
        self._written = self._clock()
        self._live["time"] = self._sign = time.time()
        aside = self._path.with_name(f"{LIVE_FILE}.{os.getpid()}.tmp")
        try:
            aside.write_text(json.dumps(self._live), encoding="utf-8")
            aside.replace(self._path)
        except OSError:  # a full disk does not end the run here
            aside.unlink(missing_ok=True)


def read_live(folder: Path) -> Live | None:
    """Read what a run does right now; None if it says nothing."""
    try:
        live: Live = json.loads((folder / LIVE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return live
