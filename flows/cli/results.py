"""What is printed after a run: each arm's accuracy with its interval, and where to look on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flows.process.messages import print_plain, show_table
from flows.process.stack_file import read_stack
from flows.runs.result_table import result_table

if TYPE_CHECKING:
    from flows.runs.result import ExperimentResult
    from ratchet.tracking.run_folder import RunFolder


def print_results(folder: RunFolder, home: Path, result: ExperimentResult) -> None:
    """Print the results of a run, how much of it was found in the store, and where to look."""
    table = result_table(folder)
    if table.rows:
        show_table(table)
    print_plain(f"Stages   {result.made} made, {result.found} found in the store")
    print_plain(f"Run      {folder.path}")
    if folder.report_path.exists():
        print_plain(f"Report   {folder.report_path}  (ratchet report {folder.run_id} --open)")
    for line in _places(home):
        print_plain(line)


def _places(home: Path) -> list[str]:
    stack = read_stack(home)
    if stack is not None and stack.is_up():
        return [f"Prefect  {stack.prefect_url}", f"MLflow   {stack.mlflow_url}"]
    return ["Prefect  and MLflow: `ratchet up` starts both and says where they are"]
