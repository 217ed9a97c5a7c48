"""What is printed after a run: each arm's accuracy with its interval, and where to look on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flows.process.messages import print_plain, print_table
from flows.process.stack_file import read_stack

if TYPE_CHECKING:
    from flows.runs.result import ExperimentResult
    from ratchet.tracking.run_folder import RunFolder


def result_rows(folder: RunFolder) -> list[tuple[str, str, str, str, str]]:
    """Return (arm, dataset, result, 95 % interval, n) for each table of test results.

    The result is the accuracy, or where nothing is decided each agent's mean return.
    """
    from ratchet.reports.returns import number
    from ratchet.statistics.results import accuracy
    from ratchet.statistics.returns import has_decisions, mean_return, paid_agents

    rows = []
    for table in folder.read_tables():
        if has_decisions(table.columns):
            estimate = accuracy(table.columns)
            interval = f"{100 * estimate.low:.1f} – {100 * estimate.high:.1f} %"
            value = f"{100 * estimate.value:.1f} %"
            rows.append((table.arm, table.name, value, interval, str(estimate.n)))
        for agent in [] if has_decisions(table.columns) else paid_agents(table.columns):
            estimate = mean_return(table.columns, agent)
            interval = f"{number(estimate.low)} – {number(estimate.high)}"
            value = f"return of {agent} {number(estimate.value)}"
            rows.append((table.arm, table.name, value, interval, str(estimate.n)))
    return rows


def print_results(folder: RunFolder, home: Path, result: ExperimentResult) -> None:
    """Print the results of a run, how much of it was found in the store, and where to look."""
    rows = result_rows(folder)
    if rows:
        what = "accuracy" if all(row[2].endswith("%") for row in rows) else "result"
        columns = ("arm", "tested on", what, "95 % interval", "n")
        print_table(f"Results of {folder.run_id}", columns, rows)
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
