"""Metric points of a run: one for each (arm, stage, iteration), each exactly once.

Stored in the append-only ``metrics.jsonl``: a point that is recomputed after its stage was
quarantined is a later line with ``"replaces": true``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ratchet.errors import DataError
from ratchet.tracking.files import JsonLines, locked
from ratchet.tracking.manifest import MAIN_ARM

Place = tuple[str, str, int]


@dataclass(frozen=True)
class MetricPoint:
    """All metrics of one iteration of one stage of one arm.

    ``time`` (seconds since 1970) is when it was first recorded; it does not count when points
    are compared.
    """

    stage: str
    iteration: int
    values: Mapping[str, float]
    arm: str = MAIN_ARM
    time: float = field(default_factory=time.time, compare=False)

    @property
    def place(self) -> Place:
        """Unique identity of the point in the run."""
        return (self.arm, self.stage, self.iteration)

    def same_values(self, other: MetricPoint) -> bool:
        """Return whether both have the same metrics; NaN equals NaN."""
        return {name: plain_number(value) for name, value in self.values.items()} == {
            name: plain_number(value) for name, value in other.values.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the point as plain data; NaN and infinities as text."""
        return {
            "arm": self.arm,
            "stage": self.stage,
            "iteration": self.iteration,
            "time": self.time,
            "values": {name: plain_number(value) for name, value in self.values.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the point of :meth:`to_dict`'s data."""
        recorded = data["values"]
        values = dict(zip(recorded, map(float, recorded.values()), strict=True))
        return cls(data["stage"], data["iteration"], values, data["arm"], data["time"])


class MetricsFile:
    """The points of a run on disk, safe among processes."""

    def __init__(self, path: Path, lock: Path) -> None:
        self._lines = JsonLines(path)
        self._lock = lock
        self._offset = 0
        self._inode: int | None = None
        self._points: dict[Place, MetricPoint] = {}

    def read(self) -> list[MetricPoint]:
        """Read all points, in the order in which they were first recorded."""
        with locked(self._lock):
            self._catch_up()
            return list(self._points.values())

    def append(self, points: Sequence[MetricPoint], *, replace: bool = False) -> int:
        """Record points that are not recorded yet; return the number of new or replaced ones.

        Raises DataError, recording none, if one has different values and ``replace`` is not set.

        Parameters
        ----------
        replace
            Whether a point with different values replaces the recorded one, as after its stage was
            quarantined and recomputed.
        """
        with locked(self._lock):
            self._catch_up()
            news: dict[Place, dict[str, Any]] = {}
            for point in points:
                known = self._points.get(point.place)
                if known is not None and known.same_values(point):
                    continue
                if known is not None and not replace:
                    raise DataError(_describe_conflict(known, point))
                news[point.place] = point.to_dict() | ({"replaces": True} if known else {})
            self._lines.append(list(news.values()))
            self._catch_up()
            return len(news)

    def correct(self, expected: Sequence[MetricPoint], *, is_complete: bool) -> bool:
        """Rewrite the file if it differs from the points that it should hold; return whether.

        Recorded points keep their places and times. Lines that cannot be read are removed.

        Parameters
        ----------
        expected
            The points of stages in the store.
        is_complete
            Whether these are all points of the run, so that others are removed.
        """
        expected_points = {point.place: point for point in expected}
        with locked(self._lock):
            items, is_sound = self._lines.read_sound()
            recorded: dict[Place, MetricPoint] = {}
            for item in items:
                try:
                    point = MetricPoint.from_dict(item)
                    recorded[point.place] = point
                except (KeyError, TypeError, ValueError, AttributeError):
                    is_sound = False
            corrected = {
                position: point
                if position not in expected_points or point.same_values(expected_points[position])
                else replace(point, values=expected_points[position].values)
                for position, point in recorded.items()
                if position in expected_points or not is_complete
            }
            corrected |= {
                position: point
                for position, point in expected_points.items()
                if position not in corrected
            }
            num_first = sum(not item.get("replaces") for item in items)
            if is_sound and corrected == recorded and num_first == len(recorded):  # no line twice
                return False
            self._lines.rewrite([point.to_dict() for point in corrected.values()])
            return True

    def _catch_up(self) -> None:
        """Read lines written since by any process; all lines if the file was rewritten."""
        inode = self._lines.inode()
        if inode != self._inode:
            self._inode, self._offset, self._points = inode, 0, {}
        items, self._offset = self._lines.read(self._offset)
        for item in items:
            point = MetricPoint.from_dict(item)
            self._points[point.place] = point


def plain_number(value: float) -> float | str:
    """Return a number as JSON data; NaN and infinities as text, which ``float`` reads."""
    return float(value) if math.isfinite(value) else str(float(value))


def _describe_conflict(known: MetricPoint, point: MetricPoint) -> str:
    names = sorted(known.values.keys() | point.values.keys())
    different = [
        f"{name}: recorded {known.values.get(name)!r}, got {point.values.get(name)!r}"
        for name in names
        if known.values.get(name) != point.values.get(name)
    ]
    return (
        f"metrics of arm {point.arm!r}, stage {point.stage!r}, iteration {point.iteration} are"
        f" recorded with other values ({'; '.join(different[:3])}). The same stage gives the same"
        " metrics; if it was quarantined and recomputed, record them with replace=True."
    )


_SHOWN = ("accuracy", "mean_episode_reward", "reward", "return", "loss")
_NOT_SHOWN = ("std_", "worst_", "datapoint_")
_TEST = "test_"
_NOISE = ("mean_", "episode_", "step_")


def metrics_that_matter(metrics: Mapping[str, float], max_count: int = 2) -> dict[str, float]:
    """Choose those to be shown first, ``max_count`` at most, under short names.

    Accuracies first, then the rewards of episodes, else of steps; losses only where there are
    neither.
    """
    chosen: dict[str, float] = {}
    for word in _SHOWN:
        if word == "loss" and chosen:
            break
        for name, value in metrics.items():
            short = _short(name)
            if (
                not any(part in name for part in _NOT_SHOWN)
                and name.endswith(word)
                and short not in chosen
                and len(chosen) < max_count
            ):
                chosen[short] = value
    return chosen


def _short(name: str) -> str:
    """Write "prover.mean_episode_reward" as "prover reward"; accuracy is the verifier's anyway."""
    agent, _, what = name.rpartition(".")
    for noise in _NOISE:
        what = what.replace(noise, "")
    agent = agent.removeprefix(_TEST)
    test = "test" if name.startswith(_TEST) else ""
    what = what.removeprefix(_TEST).replace("_", " ")
    return " ".join(filter(None, [test, "" if what == "accuracy" else agent, what]))
