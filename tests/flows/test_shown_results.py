"""Display of results in terminals and notebooks, and as pandas data frames."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
from made_runs import make_run

from flows.runs.result import ExperimentResult
from flows.sweeps.summary import SweepResults
from ratchet.reports.comparison.comparing import compare_runs
from ratchet.reports.display_table import DisplayTable
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.result_table import ResultTable
from ratchet.tracking.run_folder import RunFolder


def result(folder: Path, run_id: str, correct: list[int]) -> ExperimentResult:
    made = RunFolder.create(folder, RunManifest(run_id=run_id, name="demo"))
    columns = {"datapoint_id": [0, 1, 2, 3], "y": [0, 1, 0, 1]}
    decisions = [y if right else 1 - y for y, right in zip(columns["y"], correct, strict=True)]
    made.write_table(ResultTable("test", {**columns, "decision": decisions, "correct": correct}))
    return ExperimentResult(run_id=run_id, folder=str(made.path))


def written(shown: object) -> str:
    screen = io.StringIO()
    Console(file=screen, width=120).print(shown)
    return screen.getvalue()


def test_a_result_is_shown_with_its_interval(tmp_path: Path) -> None:
    found = result(tmp_path, "demo-1", [1, 1, 1, 0])
    assert "75.0 %" in written(found)
    assert "<td>75.0 %</td>" in found._repr_html_()
    frame = found.to_dataframe()
    assert frame.loc[0, ["run_id", "arm", "test", "measure", "value", "n"]].tolist() == [
        "demo-1",
        "main",
        "test",
        "accuracy",
        0.75,
        4,
    ]
    assert frame.loc[0, "low"] < 0.75 < frame.loc[0, "high"]


def test_a_result_prints_as_a_short_table(tmp_path: Path) -> None:
    found = result(tmp_path, "demo-1", [1, 1, 1, 0])
    head, *table = repr(found).splitlines()
    assert head == f"Run demo-1: 0 stages computed, 0 cached, folder {tmp_path / 'demo-1'}"
    assert "main   test        75.0 %" in "\n".join(table)
    assert len(table) < 6
    assert str(found) == repr(found)
    assert repr(found.table).startswith("DisplayTable(")
    gone = ExperimentResult("gone", str(tmp_path / "gone"), computed=2)
    assert repr(gone).startswith("Run gone: 2 stages computed, 0 cached, folder ")


def test_an_accuracy_next_to_other_measures_is_named(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path, RunManifest(run_id="a", name="demo"))
    columns = {"datapoint_id": [0, 1], "correct": [1, 0], "reward.agent": [0.5, 0.25]}
    made.write_table(ResultTable("test", columns))
    found = ExperimentResult(run_id="a", folder=str(made.path))
    rows = [row[:3] for row in found.table.rows]
    assert rows == [["main", "test", "accuracy 50.0 %"], ["main", "test", "return of agent 0.375"]]
    assert "accuracy 50.0 %" in repr(SweepResults([found], [{}]))


def test_sweep_results_print_as_a_table(tmp_path: Path) -> None:
    members = [result(tmp_path, "a", [1, 1, 1, 1]), result(tmp_path, "b", [1, 0, 0, 0])]
    found = repr(SweepResults(members, [{"seed": 0}, {"seed": 1}]))
    assert "Sweep of 2 members" in found
    assert "seed=1    main   test        25.0 %" in found


def test_sweep_results_are_a_list_with_a_column_per_varied_parameter(tmp_path: Path) -> None:
    members = [result(tmp_path, "a", [1, 1, 1, 1]), result(tmp_path, "b", [1, 0, 0, 0])]
    found = SweepResults(members, [{"seed": 0}, {"seed": 1}])
    assert list(found) == members
    frame = found.to_dataframe()
    assert frame["seed"].tolist() == [0, 1]
    assert frame["value"].tolist() == [1.0, 0.25]
    assert "seed=1" in written(found)
    assert "seed=1" in found._repr_html_()


def test_html_is_escaped() -> None:
    table = DisplayTable("<b>", ("a<",), [("<script>",)])
    assert "<script>" not in table._repr_html_()
    assert "&lt;script&gt;" in table._repr_html_()


def test_a_comparison_is_displayed_and_converted_to_a_data_frame(tmp_path: Path) -> None:
    for protocol, right in (("adp", 5), ("nip", 7)):
        make_run(tmp_path, protocol, right, interaction_protocol=protocol)
    comparison = compare_runs([RunFolder(tmp_path / name) for name in ("adp", "nip")])
    frame = comparison.to_dataframe()
    assert frame["metric"].unique().tolist() == ["test"]
    assert frame["mean"].tolist() == sorted(frame["mean"])
    assert "IQM" in written(comparison)
    assert "<th>IQM</th>" in comparison._repr_html_()
