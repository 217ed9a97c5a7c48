"""Write a comparison as ``comparison.md``, ``.json``, ``.html``, ``.svg``, or into a document."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.errors import DataError
from ratchet.reports.comparison.comparison import Comparison, MetricComparison
from ratchet.reports.comparison.formatting import (
    band_data,
    estimate_data,
    group_heading,
    pair_data,
)
from ratchet.reports.comparison.learning import LearningComparison
from ratchet.reports.comparison.published import published_preregistration, to_published
from ratchet.reports.comparison.svg_figure import draw_profiles, draw_svg
from ratchet.reports.comparison.text import further_parts, main_parts, to_markdown
from ratchet.reports.comparison.training_costs import used_per_run
from ratchet.reports.display_table import DisplayTable
from ratchet.reports.page import markdown_html, page_environment
from ratchet.tracking.files import write_atomically

BEGIN = "<!-- begin: written by `ratchet compare` -->"
BEGIN_MAIN = "<!-- begin: main table, written by `ratchet compare` -->"
"""Starts a section without further tables, which are then only in the page's JSON file."""
FURTHER = "The documentation site shows the other tables, the notes and the commands below."
"""Stands for the tables of the JSON file in such a section."""
END = "<!-- end: written by `ratchet compare` -->"


class ComparisonFiles(NamedTuple):
    """Paths of a comparison's files.

    ``page`` is self-contained, ``markdown`` has its figure in ``picture``, and ``data`` contains
    all numbers.
    """

    page: Path
    markdown: Path
    data: Path
    picture: Path


def write_comparison(comparison: Comparison, folder: Path) -> ComparisonFiles:
    """Write all files of a comparison into a folder, created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    suffixes = ("html", "md", "json", "svg")
    files = ComparisonFiles(*(folder / f"comparison.{suffix}" for suffix in suffixes))
    data = json.dumps(to_data(comparison), indent=1, allow_nan=False, default=str)
    write_atomically(files.data, data + "\n")
    picture = draw_svg(comparison)
    write_atomically(files.picture, picture)
    write_atomically(files.markdown, to_markdown(comparison, files.picture.name))
    write_atomically(files.page, render(comparison, picture))
    return files


def write_document(comparison: Comparison, page: Path) -> None:
    """Insert a comparison into a document, with its figure and results in sibling files.

    Only the text between the page's two markers is replaced. If the first is :data:`BEGIN_MAIN`,
    that is the main table, and the JSON file contains the others. A missing page is created with a
    heading.
    """
    picture = page.with_suffix(".svg")
    text = f"# {comparison.title}\n\n{BEGIN}\n{END}\n"
    if page.exists():
        text = page.read_text(encoding="utf-8")
    begin = BEGIN_MAIN if BEGIN_MAIN in text else BEGIN
    if text.count(begin) != 1 or text.count(END) != 1 or text.index(END) < text.index(begin):
        raise DataError(
            f"{page}: expected the lines\n{BEGIN}\n{END}\nonce each, in this order: the text"
            " between them is replaced. Add them at the position of the comparison."
        )
    parts, further = main_parts(comparison, picture.name), further_parts(comparison)
    if begin == BEGIN:
        parts, further = [*parts, *further], []
    else:
        parts.append(FURTHER)
    before, _, rest = text.partition(begin)
    generated = "\n\n".join(parts)
    text = f"{before}{begin}\n\n{generated}\n\n{END}{rest.partition(END)[2]}"
    published = to_published(comparison).model_copy(
        update={"tables": "\n\n".join(further).splitlines()}
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(picture, draw_svg(comparison))
    write_atomically(page.with_suffix(".json"), published.model_dump_json(indent=1) + "\n")
    write_atomically(page, text)


def render(comparison: Comparison, picture: str) -> str:
    """Render the page: the Markdown with its SVG picture, performance profiles and the runs."""
    columns = (group_heading(comparison.grouping), "seed", "run", "code")
    runs = [
        (group.label, str(run.seed), f"`{run.label}`", f"`{run.code}`")
        for group in comparison.grouping.groups
        for run in group.runs
    ]
    text = to_markdown(comparison, "figure", "profiles", heading=False)
    text += f"\n## Runs\n{DisplayTable('', columns, runs).to_markdown()}\n"
    pictures = {"figure": picture, "profiles": draw_profiles(comparison)}
    template = page_environment().get_template("comparison.html.j2")
    return template.render(title=comparison.title, content=markdown_html(text, pictures))


def to_data(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as data for JSON; non-finite numbers are None."""
    grouping, options = comparison.grouping, comparison.options
    preregistered = published_preregistration(comparison)
    return {
        "schema_version": 3,
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
        "metrics": [_metric_data(metric_comparison) for metric_comparison in comparison.metrics],
        "learning": [_learning_data(learning) for learning in comparison.learning],
        "lines": [asdict(line) for line in comparison.lines],
        "notes": list(comparison.notes),
        "preregistered": None if preregistered is None else preregistered.model_dump(mode="json"),
    }


def _metric_data(metric_comparison: MetricComparison) -> dict[str, Any]:
    return {
        "name": metric_comparison.metric.name,
        "title": metric_comparison.metric.title,
        "kind": metric_comparison.metric.kind,
        "test": metric_comparison.metric.test,
        "less_is_better": metric_comparison.metric.less_is_better,
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
            for row in metric_comparison.rows
        ],
        "probability_of_improvement": [
            {"first": each.first, "second": each.second, **estimate_data(each.probability)}
            for each in metric_comparison.improvements
        ],
        "pairs": [pair_data(pair) for pair in metric_comparison.pairs],
    }


def _learning_data(learning: LearningComparison) -> dict[str, Any]:
    return {
        "metric": learning.metric,
        "axis": learning.axis,
        "start": learning.start,
        "end": learning.end,
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
            for row in learning.rows
        ],
    }
