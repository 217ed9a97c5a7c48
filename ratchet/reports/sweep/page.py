"""``SweepPage``: the page of a sweep, and ``LiveSweepPage``, which rewrites it during the sweep."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import RunNotFoundError
from ratchet.reports.display_table import DisplayTable
from ratchet.reports.page import figures_json, page_environment, shared_plotly_script
from ratchet.reports.plots import Figure, rounded
from ratchet.reports.sweep.groups import SEED, SweepGroup, group_table, sweep_groups
from ratchet.reports.sweep.status import SweepStatus, read_status
from ratchet.reports.tables import show
from ratchet.statistics.importance import MIN_RUNS, Importance, encoded, parameter_importance
from ratchet.tracking.files import write_atomically
from ratchet.tracking.sweep_folder import PAGE_FILE, read_sweep

RELOAD_SECONDS = 30


@dataclass(frozen=True)
class SweepPage:
    """Current status of a sweep.

    ``importance`` is of all parameters except the seed; None while too few members have a score.
    """

    status: SweepStatus
    importance: Importance | None

    def render(self, script: str) -> str:
        """Render the page as HTML; it reloads automatically during the sweep.

        ``script`` is the element that loads plotly.js.
        """
        status = self.status
        coordinates = coordinates_figure(status)
        figures = [coordinates] if coordinates is not None else []
        if self.importance is not None:
            figures.append(importance_figure(self.importance))
        environment = page_environment()
        return environment.get_template("sweep.html.j2").render(
            status=status,
            table=status.table,
            best=self.best,
            groups=self.groups,
            group_table=group_table(status, self.groups),
            figures=figures,
            notes=self.notes,
            reload=RELOAD_SECONDS if status.is_running else None,
            plotly_script=script,
            figures_json=figures_json(figures),
        )

    @property
    def groups(self) -> list[SweepGroup]:
        """Arms and parameters over seeds, the best first."""
        return sweep_groups(self.status)

    @property
    def best(self) -> str:
        """The best group of completed members; before any completes, the best member."""
        groups = [group for group in self.groups if group.scores]
        if groups:
            group = groups[0]
            count = len(group.scores)
            seeds = "one seed" if count == 1 else f"the IQM of {count} seeds"
            return f"{self.status.shown_score(group.iqm.value)} ({seeds}) with {group.label}"
        if not self.status.scored:
            return ""
        member = self.status.scored[0]
        label = member.label or member.run_id
        return f"{self.status.shown_score(member.score)} (one unfinished member) with {label}"

    @property
    def importance_table(self) -> DisplayTable:
        """Importance of each parameter; empty while it is not available."""
        importances = self.importance.parameters if self.importance is not None else ()
        return DisplayTable(
            "importance of parameters",
            ("parameter", "importance", "spread"),
            [(each.path, f"{each.value:.2f}", f"{each.spread:.2f}") for each in importances],
            [asdict(each) for each in importances],
        )

    @property
    def notes(self) -> list[str]:
        """Notes on the meaning and limitations of the numbers."""
        better = "less" if self.status.minimize else "more"
        notes = [
            f"Scores are {self.status.measure}; {better} is better. The best of many groups is"
            " partly lucky: compare it with others over seeds (`ratchet compare"
            f" {self.status.record.sweep_id}`) before relying on it. Members, parallel coordinates"
            " and importance are of the first arm; groups of all arms, over completed members.",
            *self._sources,
            *self.status.score_notes,
        ]
        if any(member.status == "pruned" for member in self.status.members):
            notes.append(
                "Pruned members were stopped early because others scored higher by then. Their"
                " scores are from that point and listed last; importance excludes them."
            )
        if self.importance is None:
            return [
                *notes,
                f"Parameter importance needs at least {MIN_RUNS} scored members and a varying"
                " parameter other than the seed.",
            ]
        importance = self.importance
        explained = f"{max(0.0, importance.explained):.0%}"
        notes.append(
            f"Importance: a random forest was fitted to four fifths of the {importance.num_runs}"
            " scored members and predicted the others, five times; a parameter's importance is the"
            " increase of the squared error when its values are shuffled, over the variance of the"
            " scores (permutation importance, out of sample; bars: standard deviation over"
            " shuffles)."
            f" The forest predicts {explained} of the variance; the rest includes seeds and chance."
        )
        if importance.explained <= 0:
            notes.append("It has no predictive power so far, so the importances are meaningless.")
        notes.append(
            "Importance holds for the values tried and has no direction; parameters that always"
            " change together share it. Members without a finite score are excluded, which biases"
            " it if those are the slow or failed ones."
        )
        return notes

    @property
    def _sources(self) -> list[str]:
        """State the code and data of the members."""
        notes = []
        if self.status.codes:
            changed = any(code.endswith("+") for code in self.status.codes)
            note = " (+: with changes or untracked files)" if changed else ""
            notes.append(f"Code: {', '.join(self.status.codes)}{note}.")
        if self.status.data:
            digests = [
                f"{name} {', '.join(dataset_digests)}"
                for name, dataset_digests in self.status.data.items()
            ]
            notes.append(f"Data, by digest: {'; '.join(digests)}.")
        return notes


def make_sweep_page(runs: Path | str, name: str, metric: str | None = None) -> SweepPage:
    """Read the current status of a sweep; errors as ``read_sweep`` and ``read_status``."""
    record = read_sweep(runs, name)
    if record is None:
        raise RunNotFoundError(
            f"no sweep {name!r} in {runs}: expected the name of a folder with a sweep.json, or a"
            " prefix of it."
        )
    status = read_status(runs, record, metric)
    judged = [member for member in status.scored if member.status != "pruned"]
    points = [
        {path: value for path, value in member.changes.items() if path != SEED} for member in judged
    ]
    scores = [member.score or 0.0 for member in judged]
    return SweepPage(status, parameter_importance(points, scores))


def write_sweep_page(page: SweepPage, folder: Path) -> Path:
    """Write the page atomically into a folder; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PAGE_FILE
    write_atomically(path, page.render(shared_plotly_script(folder.parent)))
    return path


logger = logging.getLogger(__name__)

STAGE_SECONDS = 20.0
"""Interval between checks of the members' recorded stages."""
SHARE = 0.03
"""Maximum share of time spent writing the page."""


class LiveSweepPage:
    """Rewrites a sweep's page in a thread: when members end, periodically, and at the end."""

    def __init__(self, runs: Path | str, sweep_id: str) -> None:
        self._runs, self._sweep_id = runs, sweep_id
        self._news, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._grow, name="sweep page", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Notify that a member has ended; does not block."""
        self._news.set()

    def close(self) -> None:
        """Stop the thread and write the final page."""
        self._ended.set()
        self._news.set()
        self._thread.join()
        self._write()

    def _grow(self) -> None:
        while not self._ended.is_set():
            self._news.clear()
            start = time.monotonic()
            self._write()
            self._ended.wait((time.monotonic() - start) / SHARE)
            self._news.wait(STAGE_SECONDS)

    def _write(self) -> None:
        """Write the page; log failures instead of raising: a page must not end a sweep."""
        try:
            page = make_sweep_page(self._runs, self._sweep_id)
            write_sweep_page(page, Path(self._runs) / self._sweep_id)
        except Exception:
            logger.exception("The page of sweep %s was not written.", self._sweep_id)


MAX_LINES = 300
MAX_TICKS = 6
_LOGARITHMIC = 50.0
"""Ratio of positive values above which an axis is logarithmic."""

Trace = dict[str, Any]


def coordinates_figure(status: SweepStatus) -> Figure | None:
    """Draw each member with a score as a line through its values; None with fewer than two."""
    scored = status.scored
    if len(scored) < 2:
        return None
    step = math.ceil(len(scored) / MAX_LINES)
    members = scored[::step][::-1]  # the best on top
    names = [*status.paths, status.measure]
    columns: list[list[object]] = [
        [member.changes.get(path) for member in members] for path in status.paths
    ]
    columns.append([member.score for member in members])
    column_heights, annotations = [], []
    for x, column in enumerate(columns):
        heights, ticks = _axis(column, status if x == len(columns) - 1 else None)
        column_heights.append(heights)
        is_last = x == len(columns) - 1
        annotations += [_tick(x, height, text, right=is_last) for height, text in ticks]
    *parameter_heights, score_heights = column_heights
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": list(range(len(columns))),
            "y": rounded([heights[k] + _apart(score_heights[k]) for heights in parameter_heights])
            + rounded([score_heights[k]]),
            "line": {"width": 1.5},
            "opacity": 0.8,
            "text": f"{member.label}: {status.shown_score(member.score)}",
            "hovertemplate": "%{text}<extra></extra>",
            "meta": {
                "color": 0,
                "shade": 1 - score_heights[k] if status.minimize else score_heights[k],
            },
        }
        for k, member in enumerate(members)
    ]
    layout: dict[str, Any] = {
        "xaxis": {
            "tickvals": list(range(len(names))),
            "ticktext": [_in_lines(name.rpartition(".")[2]) for name in names],
            "range": [-0.3, len(names) - 0.5],
            "showgrid": True,
        },
        "yaxis": {"visible": False, "range": [-0.08, 1.08]},
        "annotations": annotations,
        "showlegend": False,
    }
    note = f"{len(members)} of {len(scored)} members, evenly by score" if step > 1 else ""
    title = "Each line is a member; the better the score, the more orange"
    return Figure("coordinates", title, "Sweep", traces, layout, note=note, height=380)


def importance_figure(importance: Importance) -> Figure:
    """Draw the importance of each parameter, with its spread over shuffles."""
    names = [each.path for each in importance.parameters]
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "x": rounded([each.value for each in importance.parameters]),
        "y": list(range(len(names))),
        "error_x": {"type": "data", "array": rounded([e.spread for e in importance.parameters])},
        "text": [f"{e.value:.2f} ± {e.spread:.2f}" for e in importance.parameters],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"color": 0},
    }
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": "growth of the squared error<br>÷ variance of the scores"},
            "rangemode": "tozero",
        },
        "yaxis": {
            "tickvals": list(range(len(names))),
            "ticktext": [_in_lines(name) for name in names],
            "range": [len(names) - 0.4, -0.6],
        },
        "bargap": 0.5,
        "showlegend": False,
    }
    height = min(380, max(290, 70 + 36 * len(names)))
    return Figure("importance", "Importance", "Sweep", [trace], layout, height=height)


def _axis(
    values: Sequence[object], scores: SweepStatus | None
) -> tuple[list[float], list[tuple[float, str]]]:
    """Scale values to [0, 1]; return their positions and the ticks of the axis."""
    numbers = encoded(values)
    is_numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    low, high = float(numbers.min()), float(numbers.max())
    logarithmic = is_numeric and low > 0 and high / low >= _LOGARITHMIC and scores is None
    scaled = [math.log(each) if logarithmic else float(each) for each in numbers]
    low, high = min(scaled), max(scaled)
    size = (high - low) or 1.0
    heights = [(each - low) / size if high > low else 0.5 for each in scaled]
    marks = {
        round(height, 6): show(value) if scores is None else scores.shown_score(float(number))
        for height, value, number in zip(heights, values, numbers, strict=True)
    }
    ordered = sorted(marks.items())
    if len(ordered) > MAX_TICKS:
        ordered = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
    return heights, ordered


def _in_lines(name: str) -> str:
    """Break a name into one line per word."""
    return name.replace("_", " ").replace(" ", "<br>")


def _apart(score: float) -> float:
    """Return an offset that separates lines of members with equal values."""
    return 0.04 * (score - 0.5)


def _tick(x: int, height: float, text: str, *, right: bool) -> dict[str, Any]:
    side = {"xanchor": "left", "xshift": 4} if right else {"xanchor": "right", "xshift": -4}
    return {"x": x, "y": height, "text": text, "showarrow": False, **side}
