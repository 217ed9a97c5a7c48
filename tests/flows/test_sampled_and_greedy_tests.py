"""A run that also tests with sampled actions shows both accuracies everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.runs.result import result_table
from ratchet.reports.comparison.comparing import compare_runs
from ratchet.reports.report import build_report
from ratchet.tracking.run_folder import RunFolder

SMALL = {"num_gnn_layers": 1, "num_transformer_layers": 1, "d_gin_mlp": 8}
RL = {"num_iterations": 1, "frames_per_batch": 64, "num_test_iterations": 10}


@pytest.mark.slow
def test_both_accuracies_are_in_the_results_the_report_and_comparisons(lab):
    given = {"trainer": "vanilla_ppo", "pretrain_agents": False, "agents": {"_default": SMALL}}
    alone = lab.run(lab.hyper_params(**given, rl=RL))
    both = lab.run(lab.hyper_params(**given, rl={**RL, "test_by_sampling": "both"}))
    assert (both["computed"], both["cached"]) == (1, alone["computed"]), (
        "only the missing test is computed"
    )
    tests = both["metrics"]["main"]
    assert tests["test"] == alone["metrics"]["main"]["test"]
    assert tests["test-by-sampling"]["test_accuracy"] != tests["test"]["test_accuracy"]
    folder = RunFolder(Path(both["folder"]))
    rows = {record["test"]: record["value"] for record in result_table(folder).records}
    assert rows == {name: values["test_accuracy"] for name, values in tests.items()}
    assert "test-by-sampling" in build_report(folder).read_text()
    names = [each.metric.name for each in compare_runs([folder]).of_kind("accuracy")]
    assert names == ["test", "test-by-sampling"]
