"""``ratchet runs``, ``report`` and ``sync``: what has been run. Needs no server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.completion import run_ids
from flows.process.environment import prepare_environment
from flows.process.messages import print_plain, print_table
from flows.process.stack_file import read_stack
from flows.runs.result_table import in_short, test_results

RunName = Annotated[
    str,
    typer.Argument(help="A run's id, or its beginning, or its folder.", autocompletion=run_ids),
]
RunsFolder = Annotated[str, typer.Option("--runs", help="The folder of all runs.")]
DEFAULT_RUNS = "runs"


def list_all(runs: RunsFolder = DEFAULT_RUNS) -> None:
    """List the runs, newest first, with their accuracy on the test set."""
    from ratchet.tracking.run_folder import list_runs

    folders = list_runs(runs)
    if not folders:
        print_plain(f"There are no runs in {Path(runs)}. `ratchet run FILE` makes one.")
        return
    rows, records = [], []
    for folder in folders:
        manifest = folder.manifest
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.created))
        tests = test_results(folder)
        rows.append((folder.run_id, manifest.status, created, in_short(tests)))
        record = {"run": folder.run_id, "status": manifest.status, "created": manifest.created}
        records.append({**record, "results": [each.record for each in tests]})
    print_table("", ("run", "status", "created", "accuracy"), rows, records)


def report(
    run: RunName,
    runs: RunsFolder = DEFAULT_RUNS,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Build a run's report from its folder."""
    from ratchet.reports.report import build_report
    from ratchet.tracking.run_folder import find_run

    path = build_report(find_run(runs, run))
    print_plain(str(path))
    if open_it:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def sync(
    run: RunName,
    runs: RunsFolder = DEFAULT_RUNS,
    tracking_uri: Annotated[str | None, typer.Option(help="Another MLflow than the run's.")] = None,
) -> None:
    """Bring MLflow up to a run's folder; a second time changes nothing."""
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    settings = folder.manifest.settings
    home = Path(str(settings.get("home") or ".ratchet"))
    prepare_environment(home)
    from ratchet.tracking.mlflow.mirror import MlflowMirror, default_tracking_uri

    stack = read_stack(home.resolve())
    known = tracking_uri or settings.get("tracking_uri")
    local = stack.mlflow_url if stack is not None and stack.is_up() else default_tracking_uri(home)
    mirror = MlflowMirror(str(known or local))
    mlflow_run = mirror.sync(folder)
    print_plain(f"MLflow at {mirror.tracking_uri} has run {mlflow_run}")
    url = mirror.url(folder)
    if url is not None:
        print_plain(url)
