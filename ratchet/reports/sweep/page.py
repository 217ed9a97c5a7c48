"""``SweepPage``: one page of a sweep that can be written at any time, and grows as members end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ratchet.errors import RunNotFoundError
from ratchet.reports.page import figures_json, page_environment, plotly_js
from ratchet.reports.shown_table import ShownTable
from ratchet.reports.sweep.figures import coordinates_figure, importance_figure
from ratchet.reports.sweep.standing import SweepStanding, read_standing
from ratchet.statistics.importance import MIN_RUNS, Importance, parameter_importance
from ratchet.tracking.files import write_atomically
from ratchet.tracking.sweep_folder import PAGE_FILE, read_sweep

RELOAD_SECONDS = 30
SEED = "seed"


@dataclass(frozen=True)
class SweepPage:
    """What is there of a sweep so far.

    ``importance`` is of all parameters but the seed; None while too few members have a score.
    """

    standing: SweepStanding
    importance: Importance | None

    def render(self) -> str:
        """Write the page as HTML; it loads itself anew while the sweep goes on."""
        standing = self.standing
        coordinates = coordinates_figure(standing)
        figures = [coordinates] if coordinates is not None else []
        if self.importance is not None:
            figures.append(importance_figure(self.importance))
        environment = page_environment()
        return environment.get_template("sweep.html.j2").render(
            standing=standing,
            table=standing.table,
            figures=figures,
            notes=self.notes,
            reload=RELOAD_SECONDS if standing.is_running else None,
            plotly_js=plotly_js(),
            figures_json=figures_json(figures),
        )

    @property
    def importance_table(self) -> ShownTable:
        """How much each parameter matters; without rows while that is not known."""
        found = self.importance.parameters if self.importance is not None else ()
        return ShownTable(
            "importance of parameters",
            ("parameter", "importance", "spread"),
            [(each.path, f"{each.value:.2f}", f"{each.spread:.2f}") for each in found],
            [asdict(each) for each in found],
        )

    @property
    def notes(self) -> list[str]:
        """What the numbers are, and what they cannot say."""
        better = "less" if self.standing.minimize else "more"
        notes = [
            f"Scores are {self.standing.measure}; {better} counts as better. Of so many members the"
            " best is partly the luckiest: compare it with others over seeds (`ratchet compare"
            f" {self.standing.record.sweep_id}`) before you believe in it."
        ]
        if any(member.status == "pruned" for member in self.standing.members):
            notes.append(
                "Pruned members were ended early, for others did better by then. Their scores are"
                " of that time and stand behind the others'; importance does not count them."
            )
        if self.importance is None:
            return [
                *notes,
                f"Which parameters matter is told from {MIN_RUNS} scored members on, if more than"
                " the seed varies.",
            ]
        found = self.importance
        told = f"{max(0.0, found.explained):.0%}"
        notes.append(
            f"Importance: a random forest was fitted to four fifths of the {found.num_runs} scored"
            " members and foretold the others, five times; a parameter's importance is how much the"
            " squared error grows when its values are shuffled, over the variance of the scores"
            " (permutation importance, out of sample; bars: standard deviation among shuffles)."
            f" The forest foretells {told} of the variance; seeds and chance are in the rest."
        )
        if found.explained <= 0:
            notes.append("It foretells nothing so far, so that the importances say nothing either.")
        notes.append(
            "It holds for the values that were tried, says no direction, and parameters that always"
            " change together share what they matter. Members that have no score yet are not in it:"
            " if those are the slow or the failed ones, they are missed."
        )
        return notes


def make_sweep_page(runs: Path | str, name: str, metric: str | None = None) -> SweepPage:
    """Read a sweep as it stands now; name and errors as ``read_sweep`` and ``read_standing``.

    Raises
    ------
    RunNotFoundError
        If there is no such sweep.
    """
    record = read_sweep(runs, name)
    if record is None:
        raise RunNotFoundError(
            f"no sweep {name!r} in {runs}: expected the name of a folder with a sweep.json, or its"
            " beginning."
        )
    standing = read_standing(runs, record, metric)
    judged = [member for member in standing.scored if member.status != "pruned"]
    points = [
        {path: value for path, value in member.changes.items() if path != SEED} for member in judged
    ]
    scores = [member.score or 0.0 for member in judged]
    return SweepPage(standing, parameter_importance(points, scores))


def write_sweep_page(page: SweepPage, folder: Path) -> Path:
    """Write the page into a folder, whole or not at all; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PAGE_FILE
    write_atomically(path, page.render())
    return path
