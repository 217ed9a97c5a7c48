"""``SweepPage``: the page of a sweep, and ``LiveSweepPage``, which rewrites it during the sweep."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ratchet.errors import RatchetError, RunNotFoundError
from ratchet.reports.display_table import DisplayTable
from ratchet.reports.page import figures_json, page_environment, shared_plotly_script
from ratchet.reports.sweep.figures import coordinates_figure, importance_figure
from ratchet.reports.sweep.status import SweepStatus, read_status
from ratchet.statistics.importance import MIN_RUNS, Importance, parameter_importance
from ratchet.tracking.files import write_atomically
from ratchet.tracking.sweep_folder import PAGE_FILE, read_sweep

RELOAD_SECONDS = 30
SEED = "seed"


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
            figures=figures,
            notes=self.notes,
            reload=RELOAD_SECONDS if status.is_running else None,
            plotly_script=script,
            figures_json=figures_json(figures),
        )

    @property
    def importance_table(self) -> DisplayTable:
        """Importance of each parameter; empty while it is not available."""
        found = self.importance.parameters if self.importance is not None else ()
        return DisplayTable(
            "importance of parameters",
            ("parameter", "importance", "spread"),
            [(each.path, f"{each.value:.2f}", f"{each.spread:.2f}") for each in found],
            [asdict(each) for each in found],
        )

    @property
    def notes(self) -> list[str]:
        """Notes on the meaning and limitations of the numbers."""
        better = "less" if self.status.minimize else "more"
        notes = [
            f"Scores are {self.status.measure}; {better} is better. The best of many members is"
            " partly lucky: compare it with others over seeds (`ratchet compare"
            f" {self.status.record.sweep_id}`) before relying on it."
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
        found = self.importance
        explained = f"{max(0.0, found.explained):.0%}"
        notes.append(
            f"Importance: a random forest was fitted to four fifths of the {found.num_runs} scored"
            " members and predicted the others, five times; a parameter's importance is the"
            " increase of the squared error when its values are shuffled, over the variance of the"
            " scores (permutation importance, out of sample; bars: standard deviation over"
            " shuffles)."
            f" The forest predicts {explained} of the variance; the rest includes seeds and chance."
        )
        if found.explained <= 0:
            notes.append("It has no predictive power so far, so the importances are meaningless.")
        notes.append(
            "Importance holds for the values tried and has no direction; parameters that always"
            " change together share it. Members without a score are excluded, which biases it if"
            " those are the slow or failed ones."
        )
        return notes


def make_sweep_page(runs: Path | str, name: str, metric: str | None = None) -> SweepPage:
    """Read the current status of a sweep; errors as ``read_sweep`` and ``read_status``.

    Raises
    ------
    RunNotFoundError
        If the sweep does not exist.
    """
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
        """Write the page; log failures instead of raising."""
        try:
            page = make_sweep_page(self._runs, self._sweep_id)
            write_sweep_page(page, Path(self._runs) / self._sweep_id)
        except (RatchetError, OSError):
            logger.exception("the page of sweep %s", self._sweep_id)
