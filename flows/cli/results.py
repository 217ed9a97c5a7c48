"""What is printed after a run: each arm's accuracy with its interval, and where to look on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flows.process.messages import print_plain, print_warning, show_table
from flows.process.stack_file import running_stack
from flows.process.tracking_uri import choose_mirrors
from flows.runs.result_table import result_table

if TYPE_CHECKING:
    from flows.runs.result import ExperimentResult
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.tracking.run_folder import RunFolder


def print_results(
    folder: RunFolder, settings: ExperimentSettings, result: ExperimentResult
) -> None:
    """Print the results of a run, how much of it was found in the store, and where to look."""
    from ratchet.tracking.run_warnings import run_warnings

    table = result_table(folder)
    if table.rows:
        show_table(table)
    print_plain(f"Stages   {result.made} made, {result.found} found in the store")
    print_plain(f"Run      {folder.path}")
    if folder.report_path.exists():
        print_plain(f"Report   {folder.report_path}  (ratchet report {folder.run_id} --open)")
    for line in _places(folder, settings):
        print_plain(line)
    warn_if_behind(folder, settings)
    for warning in run_warnings(folder):
        print_warning(warning)


def warn_if_behind(folder: RunFolder, settings: ExperimentSettings) -> None:
    """Say so if a mirror has not got all of the run, with the command that mends it."""
    from ratchet.tracking.mirrors import NAMES
    from ratchet.tracking.urls import without_logins
    from tasks.save import is_behind

    if not settings.tracking:
        return
    for kind, place in choose_mirrors(settings).items():
        if is_behind(folder, kind, place):
            print_warning(
                f"{NAMES[kind]:8} at {without_logins(place)} could not be reached, or refused:"
                " tracking is behind, and the run folder has everything. Catch up:"
                f" ratchet sync {folder.run_id}"
            )


def _places(folder: RunFolder, settings: ExperimentSettings) -> list[str]:
    """Return where the servers show the run."""
    stack = running_stack(settings.home)
    lines = [] if stack is None else [f"Prefect  {stack.prefect_url}"]
    url = folder.manifest.tracking.get("url")
    if settings.tracking and url:
        lines.append(f"MLflow   {url}")
    return lines or ["Prefect  and MLflow: `ratchet up` starts both and says where they are"]
