"""``ratchet runs``, ``report``, ``sync`` and ``cancel``: what has been run. Needs no server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.completion import run_ids
from flows.process.environment import prepare_environment
from flows.process.messages import print_plain, print_table
from flows.runs.result_table import in_short, test_results
from ratchet.errors import TrackingError

if TYPE_CHECKING:
    from ratchet.tracking.run_folder import RunFolder

RunName = Annotated[
    str,
    typer.Argument(help="A run's id, or its beginning, or its folder.", autocompletion=run_ids),
]
RunsFolder = Annotated[str, typer.Option("--runs", help="The folder of all runs.")]
DEFAULT_RUNS = "runs"


def list_all(
    runs: RunsFolder = DEFAULT_RUNS,
    delete: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Delete a run's folder; what it has stored stays."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> None:
    """List the runs, newest first, with their accuracy on the test set; or delete one."""
    from ratchet.tracking.run_folder import find_run, list_runs

    if delete is not None:
        _delete(find_run(runs, delete), yes=yes)
        return

    folders = list_runs(runs)
    if not folders:
        print_plain(f"There are no runs in {Path(runs)}. `ratchet run FILE` makes one.")
        return
    rows, records = [], []
    for folder in folders:
        manifest = folder.manifest
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.created))
        status, tests = folder.status, test_results(folder)
        rows.append((folder.run_id, status, created, in_short(tests)))
        record = {"run": folder.run_id, "status": status, "created": manifest.created}
        records.append({**record, "results": [each.record for each in tests]})
    print_table("", ("run", "status", "created", "accuracy"), rows, records)


def report(
    run: RunName,
    runs: RunsFolder = DEFAULT_RUNS,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Build a run's report from its folder, after comparing that with the store."""
    from flows.runs.derived_files import rebuild_derived_files
    from ratchet.reports.report import build_report
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    rebuild_derived_files(folder)
    path = build_report(folder)
    print_plain(str(path))
    if open_it:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def sync(
    run: RunName,
    runs: RunsFolder = DEFAULT_RUNS,
    tracking_uri: Annotated[str | None, typer.Option(help="Another MLflow than the run's.")] = None,
) -> None:
    """Bring a run's mirrors up to its folder; a second time changes nothing."""
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    prepare_environment(folder.home)
    from flows.process.tracking_uri import choose_mirrors
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.mirrors import NAMES, open_mirror
    from ratchet.tracking.urls import without_logins

    known = {
        name: folder.manifest.settings[name]
        for name in ("tracking_uri", "mirrors")
        if folder.manifest.settings.get(name)
    }
    if tracking_uri is not None:
        known |= {"tracking_uri": tracking_uri, "mirrors": ["mlflow"]}
    settings = ExperimentSettings.from_dict({"home": str(folder.home), **known})
    failed: TrackingError | None = None
    for kind, place in choose_mirrors(settings).items():
        try:
            mirrored = open_mirror(kind, place).sync(folder)
        except TrackingError as error:
            failed = failed or error
            continue
        print_plain(f"{NAMES[kind]} at {without_logins(place)} has run {mirrored}")
    if failed is not None:
        raise failed
    url = folder.manifest.tracking.get("url")
    if "mlflow" in settings.mirrors and url:
        print_plain(str(url))


def cancel(run: RunName, runs: RunsFolder = DEFAULT_RUNS) -> None:
    """End a run that is running; what it has finished stays, and `ratchet resume` goes on."""
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    home = folder.home
    prepare_environment(home, make_folders=False)
    from flows.runs.cancelling import cancel_run

    cancel_run(folder)
    print_plain(
        f"Cancelled {folder.run_id}. Its finished stages are kept. To go on:"
        f" ratchet resume {folder.run_id}"
    )


def _delete(folder: RunFolder, *, yes: bool) -> None:
    """Delete a run's folder after asking; RunStateError if somebody runs it."""
    from ratchet.errors import RunStateError
    from ratchet.tracking.presence import runners

    if runners(folder.path):  # also of one that was told to end and has not yet
        raise RunStateError(
            f"run {folder.run_id} is running. End it first: `ratchet cancel {folder.run_id}`."
        )
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 2**20
    print_plain(
        f"{folder.path}: {len(files)} files, {size:.1f} MiB (parameters, metrics, tables, report,"
        f" transcripts). Its {len(folder.manifest.stages)} stages stay in the store, and what"
        " MLflow has stays there."
    )
    if not yes:
        typer.confirm(f"Delete run {folder.run_id}?", abort=True)
    folder.delete()
    print_plain(f"Deleted {folder.run_id}.")
