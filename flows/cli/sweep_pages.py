"""``ratchet sweep-page``: how a sweep stands now, as a page that grows while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.completion import runs_and_sweeps
from flows.cli.runs import DEFAULT_RUNS, RunsFolder
from flows.process.messages import print_plain, prints_json, show_table


def sweep_page(
    name: Annotated[
        str, typer.Argument(metavar="SWEEP", help="A sweep.", autocompletion=runs_and_sweeps)
    ],
    metric: Annotated[
        str | None,
        typer.Option(help="Score members by the last value of a recorded metric, STAGE/NAME."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="The folder to write to; the sweep's own.")
    ] = None,
    runs: RunsFolder = DEFAULT_RUNS,
) -> None:
    """Write a page of a sweep as it stands: members, scores, which parameters matter.

    At any time; an open page loads itself anew while members run.
    """
    from ratchet.reports.sweep.page import make_sweep_page, write_sweep_page

    page = make_sweep_page(runs, name, metric)
    standing = page.standing
    if prints_json():
        show_table(standing.table)
        show_table(page.importance_table)
    print_plain(f"Sweep {standing.record.sweep_id}: {standing.counts}")
    if standing.scored:
        best = standing.scored[0]
        score = standing.shown_score(best.score)
        print_plain(f"Best so far  {score}  {best.label}  ({best.run_id})")
    print_plain(str(write_sweep_page(page, to or Path(runs) / standing.record.sweep_id)))
