"""``ratchet runs``, ``report``, ``sync`` and ``cancel``; the results printed after a run.

These commands need no server.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.completion import run_ids
from flows.process.environment import prepare_environment
from flows.process.messages import print_plain, print_table, print_warning, show_table
from flows.process.stack_file import running_stack
from flows.process.tracking_uri import choose_mirrors, export_mlflow_credentials
from flows.runs.result import result_table, summary_line, test_results
from ratchet.errors import TrackingError

if TYPE_CHECKING:
    from flows.runs.result import ExperimentResult
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.run_folder import RunFolder

RunName = Annotated[
    str,
    typer.Argument(help="Id, id prefix or folder of a run.", autocompletion=run_ids),
]
RunsFolder = Annotated[str, typer.Option("--runs-dir", help="Folder of all runs.")]
DEFAULT_RUNS = "runs"


def list_all(
    runs: RunsFolder = DEFAULT_RUNS,
    delete: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Delete a run's folder; its stored stages remain."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without confirmation.")] = False,
) -> None:
    """List the runs, newest first, with their results; or delete one."""
    from ratchet.tracking.run_folder import find_run, list_runs

    if delete is not None:
        _delete(find_run(runs, delete), yes=yes)
        return

    folders = list_runs(runs)
    if not folders:
        print_plain(f"No runs in {Path(runs)}. Start one: `ratchet run FILE`.")
        return
    rows, records = [], []
    for folder in folders:
        manifest = folder.manifest
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest.created))
        status, tests = folder.status, test_results(folder)
        rows.append((folder.run_id, status, created, summary_line(tests)))
        record = {"run": folder.run_id, "status": status, "created": manifest.created}
        records.append({**record, "results": [each.record for each in tests]})
    print_table("", ("run", "status", "created", "result"), rows, records)


def report(
    run: RunName,
    runs: RunsFolder = DEFAULT_RUNS,
    standalone: Annotated[
        bool,
        typer.Option("--standalone", help="Include the plotting library: a page to send or move."),
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Build a run's report; check its folder against the store."""
    from flows.runs.derived_files import rebuild_derived_files
    from ratchet.reports.report import build_report
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    rebuild_derived_files(folder)
    path = build_report(folder, standalone=standalone)
    print_plain(str(path))
    if open_it:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def sync(
    run: RunName,
    runs: RunsFolder = DEFAULT_RUNS,
    tracking_uri: Annotated[
        str | None, typer.Option(help="Tracking URI of an MLflow to use instead of the run's.")
    ] = None,
) -> None:
    """Update MLflow and other mirrors of a run from its folder."""
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    prepare_environment(folder.home)
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.mirrors.base import open_mirror
    from ratchet.tracking.urls import without_logins

    stored = {
        name: folder.manifest.settings[name]
        for name in ("base_dir", "tracking_uri", "mirrors")
        if folder.manifest.settings.get(name)
    }
    if tracking_uri is not None:
        stored |= {"tracking_uri": tracking_uri, "mirrors": ["mlflow"]}
    settings = ExperimentSettings.from_dict({"home": str(folder.home), **stored})
    export_mlflow_credentials(settings.home, settings.tracking_uri)
    failed: TrackingError | None = None
    for kind, location in choose_mirrors(settings).items():
        try:
            mirror = open_mirror(kind, location)
            mirrored = mirror.sync(folder)
        except TrackingError as error:
            failed = failed or error
            continue
        print_plain(f"{mirror.title} at {without_logins(location)} has run {mirrored}")
    if failed is not None:
        raise failed
    url = folder.manifest.tracking.get("url")
    if "mlflow" in settings.mirrors and url:
        print_plain(str(url))


def cancel(run: RunName, runs: RunsFolder = DEFAULT_RUNS) -> None:
    """Cancel a running run; `ratchet resume` continues it."""
    from ratchet.tracking.run_folder import find_run

    folder = find_run(runs, run)
    home = folder.home
    prepare_environment(home, make_folders=False)
    from flows.runs.pause_and_cancel import cancel_run

    cancel_run(folder)
    print_plain(
        f"Cancelled {folder.run_id}. Its finished stages are stored. To resume:"
        f" ratchet resume {folder.run_id}"
    )


def _delete(folder: RunFolder, *, yes: bool) -> None:
    """Delete a run's folder after confirmation; RunStateError if it is running."""
    from ratchet.errors import RunStateError
    from ratchet.tracking.run_lock import runners

    if runners(folder.path):  # includes a cancelled run whose process has not exited
        raise RunStateError(
            f"run {folder.run_id} is running. Cancel it first: `ratchet cancel {folder.run_id}`."
        )
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 2**20
    print_plain(
        f"{folder.path}: {len(files)} files, {size:.1f} MiB (parameters, metrics, tables, report,"
        f" transcripts). Its {len(folder.manifest.stages)} stages remain in the store, and its data"
        " in MLflow are not deleted."
    )
    if not yes:
        typer.confirm(f"Delete run {folder.run_id}?", abort=True)
    folder.delete()
    print_plain(f"Deleted {folder.run_id}.")


def print_results(
    folder: RunFolder, settings: ExperimentSettings, result: ExperimentResult
) -> None:
    """Print the results of a run, its cache hits and misses, and links to its pages."""
    from ratchet.tracking.run_warnings import run_warnings

    table = result_table(folder)
    if table.rows:
        show_table(table)
    print_plain(f"Stages   {result.stage_counts}")
    print_plain(f"Run      {folder.path}")
    if folder.report_path.exists():
        print_plain(f"Report   {folder.report_path}  (ratchet report {folder.run_id} --open)")
    for line in _server_links(folder, settings):
        print_plain(line)
    warn_if_behind(folder, settings)
    for warning in run_warnings(folder):
        print_warning(warning)


def warn_if_behind(folder: RunFolder, settings: ExperimentSettings) -> None:
    """Warn if a mirror is incomplete, with the command that updates it."""
    from ratchet.tracking.mirrors.base import MIRRORS
    from ratchet.tracking.urls import without_logins
    from tasks.save import is_behind

    if not settings.tracking:
        return
    for kind, location in choose_mirrors(settings).items():
        if is_behind(folder, kind, location):
            title = MIRRORS.find(kind).title
            print_warning(
                f"{title:8} at {without_logins(location)} was unreachable or refused data:"
                " tracking is behind, but the run folder is complete. Catch up:"
                f" ratchet sync {folder.run_id}"
            )


def _server_links(folder: RunFolder, settings: ExperimentSettings) -> list[str]:
    """Return lines with the URLs of the run's pages on the servers."""
    manifest, stack = folder.manifest, running_stack(settings.home)
    lines = []
    if stack is not None:
        page = manifest.flow_run_url or ""
        ran_here = page.startswith(f"{stack.prefect_url}/")
        lines.append(f"Prefect  {page if ran_here else stack.prefect_url}")
    url = manifest.tracking.get("url")
    if settings.tracking and url:
        lines.append(f"MLflow   {url}")
    return lines or ["Servers  `ratchet up` starts Prefect and MLflow, and prints their URLs"]
