"""Results of suites, read from logs of two versions of inspect-ai."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.errors import DataError, SuiteFailedError
from ratchet.language_models.suites.log import read_log

HERE = Path(__file__).parent
LOGS = ["log_0.3.69.json", "log_0.3.285.json"]


@pytest.fixture
def changed(tmp_path):
    """Rewrite a log with other content."""

    def write(change):
        log = json.loads((HERE / LOGS[1]).read_bytes())
        change(log)
        file = tmp_path / "log.json"
        file.write_text(json.dumps(log))
        return read_log(file)

    return write


@pytest.mark.parametrize("name", LOGS)
def test_metrics_and_a_row_for_each_answer(name):
    result = read_log(HERE / name)
    assert result.metrics == {"num_samples": 2, "accuracy": 0, "stderr": 0}
    assert result.table == {
        "datapoint_id": [0, 1],
        "sample_id": ["0+0", "0+1"],
        "epoch": [1, 1],
        "score.match": ["I", "I"],
        "correct": [0, 0],
    }


def test_several_scorers_are_told_apart_and_what_is_no_finite_number_is_left_out(changed):
    def add(log):
        (first,) = log["results"]["scores"]
        first["metrics"]["stderr"]["value"] = float("nan")
        metrics = {"mean of all": {"name": "mean of all", "value": 0.5}}
        log["results"]["scores"].append(
            {**first, "name": "judge", "reducer": "max", "metrics": metrics}
        )

    assert changed(add).metrics == {
        "num_samples": 2,
        "match/accuracy": 0,
        "judge_max/mean_of_all": 0.5,
    }


def test_answers_are_right_or_wrong_only_where_all_are(changed):
    def score(*values):
        def change(log):
            for sample, value in zip(log["samples"], values, strict=True):
                sample["scores"]["match"]["value"] = value

        return changed(change).table.get("correct")

    assert score("C", "I") == [1, 0]
    assert score(1.0, False) == [1, 0]
    assert score(0.5, 1) is None
    assert score("P", "C") is None
    assert score({"a": 1}, "C") is None


def test_rows_stand_in_the_order_of_samples_and_epochs_whoever_was_first(changed):
    def change(log):
        again = [{**sample, "epoch": 2} for sample in log["samples"]]
        log["samples"] = [*reversed(again), *reversed(log["samples"])]

    table = changed(change).table
    assert table["sample_id"] == ["0+0", "0+0", "0+1", "0+1"]
    assert table["epoch"] == [1, 2, 1, 2]
    assert table["datapoint_id"] == [0, 0, 1, 1]


def test_a_failed_suite_says_what_was_raised_where(tmp_path):
    with pytest.raises(SuiteFailedError, match=r"nothing there.*failing.py.*, line 10, in score"):
        read_log(HERE / "failed_0.3.285.json")
    (tmp_path / "log.json").write_text("[]")
    with pytest.raises(DataError, match="invalid inspect-ai log"):
        read_log(tmp_path / "log.json")
