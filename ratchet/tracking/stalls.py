"""Stages that seem to stand still: under way, and without a sign of life for unusually long.

Who runs a run tells so himself (:class:`StallWatch`); who looks at its folder from outside judges
by the same rule, also where that process is frozen.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

from ratchet.tracking.live_file import Live, StageUnderWay
from ratchet.tracking.logs import log_place
from ratchet.tracking.manifest import StageRecord

logger = logging.getLogger(__name__)

STALL_FACTOR = 5.0
"""How many times as long as such a stage usually takes it may give no sign."""
STALL_SECONDS = 600.0
"""How long a stage may give no sign at least, if the settings say nothing else."""
_LOOKS = 4  # in the time that a stage may give no sign
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Stall:
    """A stage that has given no sign for ``seconds``; ``usual`` is what such a one takes."""

    arm: str
    name: str
    iteration: int
    seconds: float
    usual: float | None

    def __str__(self) -> str:
        whole = f"; such a stage takes {self.usual:.1f} s" if self.usual is not None else ""
        return (
            f"{self.arm} {self.name} {self.iteration} has given no sign of life for"
            f" {self.seconds:.0f} s{whole}"
        )


def usual_seconds(records: Iterable[StageRecord]) -> dict[str, float]:
    """Return how long a run's stages take, by their names: the median of those that are done."""
    seconds: dict[str, list[float]] = {}
    for record in records:
        seconds.setdefault(record.stage, []).append(record.seconds)
    return {stage: statistics.median(values) for stage, values in seconds.items()}


def find_stalls(
    stages: Iterable[StageUnderWay],
    usual: Mapping[str, float],
    limit: float | None = None,
    now: float | None = None,
) -> list[Stall]:
    """Return those of the stages under way that seem to stand still.

    Parameters
    ----------
    usual
        How long such stages take, by name; see :func:`usual_seconds`.
    limit
        ``settings.stall_seconds``. Without, it depends on what is usual.
    """
    now = time.time() if now is None else now
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
    """Return the stages that seem to stand still, by what a run's folder says."""
    return [] if live is None else find_stalls(live["stages"], usual_seconds(records), limit)


class StallWatch:
    """Looks after the stages of a run from a thread, and tells of each that stands still, once.

    Parameters
    ----------
    under_way
        Returns the stages that are being made.
    usual
        Returns how long they take, by name; asked only where one gives no sign.
    limit
        ``settings.stall_seconds``.
    tell
        Is told of each stage that stands still; of one that goes on and stands still again, again.
    """

    def __init__(
        self,
        under_way: Callable[[], list[StageUnderWay]],
        usual: Callable[[], Mapping[str, float]],
        limit: float | None,
        tell: Callable[[Stall], None],
    ) -> None:
        self._under_way, self._usual, self._limit, self._tell = under_way, usual, limit, tell
        self._told: set[tuple[str, str, int]] = set()
        self._ended = threading.Event()
        watch = partial(copy_context().run, self._watch)  # what it logs is about this run
        self._thread = threading.Thread(target=watch, name="stall-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look after nothing any more."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        pause = min((self._limit or STALL_SECONDS) / _LOOKS, _LONGEST_PAUSE)
        while not self._ended.wait(pause):
            try:
                self.look()
            except Exception:  # the run goes on without
                logger.exception("looking for stages that stand still")

    def look(self) -> None:
        """Look once."""
        stages = self._under_way()
        stalls = find_stalls(stages, {}, self._limit)
        if stalls:  # by the shortest measure: only then is it worth reading how long they take
            stalls = find_stalls(stages, self._usual(), self._limit)
        standing = {(stall.arm, stall.name, stall.iteration): stall for stall in stalls}
        for place in self._told & {(s["arm"], s["stage"], s["iteration"]) for s in stages}:
            if place not in standing:
                with _logged_at(place):
                    logger.info("%s %s %s goes on", *place)
        for place in standing.keys() - self._told:
            with _logged_at(place):
                self._tell(standing[place])
        self._told = set(standing)


def _logged_at(place: tuple[str, str, int]) -> AbstractContextManager[None]:
    arm, stage, iteration = place
    return log_place(arm=arm, stage=stage, iteration=iteration)
