"""Write a comparison as ``comparison.md``, ``.json``, ``.html``, ``.svg``, or into a document."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ratchet.errors import DataError
from ratchet.reports.comparison.comparison import Comparison, MetricComparison
from ratchet.reports.comparison.display_tables import learning_table, pair_table
from ratchet.reports.comparison.figures import (
    aggregate_figures,
    group_figures,
    improvement_figures,
    learning_figures,
    profile_figures,
)
from ratchet.reports.comparison.formatting import (
    band_data,
    chance,
    estimate_data,
    group_heading,
    interval,
    is_different,
    number,
    pair_data,
)
from ratchet.reports.comparison.learning import LearningComparison
from ratchet.reports.comparison.published import published_preregistration, to_published
from ratchet.reports.comparison.svg_figure import draw_svg
from ratchet.reports.comparison.text import (
    curve_notes,
    reading_notes,
    to_markdown,
    used_per_run,
    verdicts,
)
from ratchet.reports.page import figures_json, page_environment, plotly_script
from ratchet.tracking.files import write_atomically

BEGIN = "<!-- begin: written by `ratchet compare` -->"
END = "<!-- end: written by `ratchet compare` -->"


@dataclass(frozen=True)
class ComparisonFiles:
    """Paths of a comparison's files."""

    folder: Path

    @property
    def markdown(self) -> Path:
        """Tables and notes."""
        return self.folder / "comparison.md"

    @property
    def data(self) -> Path:
        """All numbers."""
        return self.folder / "comparison.json"

    @property
    def page(self) -> Path:
        """Tables and plots in one self-contained file."""
        return self.folder / "comparison.html"

    @property
    def picture(self) -> Path:
        """The figure of the Markdown."""
        return self.folder / "comparison.svg"


def write_comparison(comparison: Comparison, folder: Path) -> ComparisonFiles:
    """Write all files of a comparison into a folder, created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    files = ComparisonFiles(folder)
    data = json.dumps(to_data(comparison), indent=1, allow_nan=False, default=str)
    write_atomically(files.data, data + "\n")
    write_atomically(files.picture, draw_svg(comparison))
    write_atomically(files.markdown, to_markdown(comparison, files.picture.name))
    write_atomically(files.page, render(comparison))
    return files


def write_document(comparison: Comparison, page: Path) -> None:
    """Insert a comparison into a document, with its figure and results in sibling files.

    Only the text between the page's two markers is replaced. A missing page is created with a
    heading.

    Raises
    ------
    DataError
        If the page does not contain both markers once and in order.
    """
    picture = page.with_suffix(".svg")
    generated = to_markdown(comparison, picture.name, heading=False)
    between = f"{BEGIN}\n\n{generated}\n{END}"
    if page.exists():
        text = page.read_text(encoding="utf-8")
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end or BEGIN in rest or END in after:
            raise DataError(
                f"{page}: expected the lines\n{BEGIN}\n{END}\nonce each, in this order: the text"
                " between them is replaced. Add them at the position of the comparison."
            )
        text = f"{before}{between}{after}"
    else:
        text = f"# {comparison.title}\n\n{between}\n"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(picture, draw_svg(comparison))
    results = to_published(comparison).model_dump_json(indent=1)
    write_atomically(page.with_suffix(".json"), results + "\n")
    write_atomically(page, text)


def render(comparison: Comparison) -> str:
    """Render the page."""
    aggregates, improvements = aggregate_figures(comparison), improvement_figures(comparison)
    profiles, learning = profile_figures(comparison), learning_figures(comparison)
    groups = group_figures(comparison)
    grouped = [figure for _, figures in groups for figure in figures]
    improved = [figure for figures in improvements for figure in figures]
    environment = page_environment()
    return environment.get_template("comparison.html.j2").render(
        comparison=comparison,
        heading=group_heading(comparison.grouping),
        level=f"{100 * comparison.options.level:g} %",
        notes=[*reading_notes(comparison), *comparison.notes],
        aggregates=aggregates,
        improvements=improvements,
        groups=groups,
        profiles=profiles,
        learning=[
            (figure, found, learning_table(comparison, found), curve_notes(found))
            for figure, found in zip(learning, comparison.learning, strict=True)
        ],
        pair_table=partial(pair_table, comparison),
        verdicts=partial(verdicts, comparison),
        chance=chance,
        interval=interval,
        is_different=is_different,
        number=number,
        used_per_run=used_per_run,
        plotly_script=plotly_script(),
        figures_json=figures_json([*aggregates, *improved, *profiles, *grouped, *learning]),
    )


def to_data(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as data for JSON; non-finite numbers are None."""
    grouping, options = comparison.grouping, comparison.options
    preregistered = published_preregistration(comparison)
    return {
        "schema_version": 2,
        "title": comparison.title,
        "commands": list(comparison.commands),
        "level": options.level,
        "method": options.method,
        "num_resamples": options.num_resamples,
        "seed": options.seed,
        "power": options.power,
        "baselines": list(options.baselines),
        "planned_pairs": [list(pair) for pair in options.pairs],
        "effect": options.effect,
        "differing": list(grouping.paths),
        "tasks": list(grouping.tasks),
        "groups": [
            {
                "label": group.label,
                "values": dict(group.values),
                "seeds": group.seeds,
                "runs": [run.label for run in group.runs],
                "used_in_training": asdict(used_per_run(group)),
            }
            for group in grouping.groups
        ],
        "metrics": [_metric_data(found) for found in comparison.metrics],
        "learning": [_learning_data(found) for found in comparison.learning],
        "lines": [asdict(line) for line in comparison.lines],
        "notes": list(comparison.notes),
        "preregistered": None if preregistered is None else preregistered.model_dump(mode="json"),
    }


def _metric_data(found: MetricComparison) -> dict[str, Any]:
    return {
        "name": found.metric.name,
        "title": found.metric.title,
        "kind": found.metric.kind,
        "test": found.metric.test,
        "less_is_better": found.metric.less_is_better,
        "groups": [
            {
                "label": row.group.label,
                "scores": [list(task) for task in row.scores],
                "seeds": [[run.seed for run in task] for task in row.group.tasks],
                "iqm": estimate_data(row.iqm),
                "median": estimate_data(row.median),
                "mean": estimate_data(row.mean),
                "optimality_gap": None if row.gap is None else estimate_data(row.gap),
                "profile": None if row.profile is None else band_data(row.profile),
            }
            for row in found.rows
        ],
        "probability_of_improvement": [
            {"first": each.first, "second": each.second, **estimate_data(each.probability)}
            for each in found.improvements
        ],
        "pairs": [pair_data(pair) for pair in found.pairs],
    }


def _learning_data(found: LearningComparison) -> dict[str, Any]:
    return {
        "metric": found.metric,
        "axis": found.axis,
        "start": found.start,
        "end": found.end,
        "groups": [
            {
                "label": row.group.label,
                "curve": band_data(row.band),
                "ends": list(row.ends),
                "mean_height": None if row.area is None else estimate_data(row.area),
                "reaching": [
                    {
                        "threshold": each.threshold,
                        "positions": list(each.positions),
                        "reached": list(each.reached),
                        "median": estimate_data(each.median),
                    }
                    for each in row.reaching
                ],
            }
            for row in found.rows
        ],
    }
