"""Tests with correct or wrong answers without decisions: accuracies first, then returns."""

from __future__ import annotations

import shutil
import time

import pytest

from flows.runs import result as results
from ratchet.errors import DataError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.reports import build_report
from ratchet.reports.comparison import comparison
from ratchet.reports.comparison.runs import check_same_tests, read_compared_runs
from ratchet.reports.content import read_content
from ratchet.reports.curves import curve_figures
from ratchet.reports.report import headline, render
from ratchet.reports.tables import (
    accuracy_rows,
    difference_rows,
    return_difference_rows,
    return_rows,
)
from ratchet.reports.transcripts import read_transcripts
from ratchet.rollouts.transcripts import save_report_transcripts
from ratchet.statistics import accuracy, accuracy_difference, wilson_interval
from ratchet.statistics.results import agents_by_return, evaluator_metrics, mean_metric
from ratchet.tracking.environment import CodeState
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.mirrors.payload import final_metrics
from ratchet.tracking.result_table import ResultTable, holds_results
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.stage_kinds import TRAIN

SIZE = 40
GIVEN = {"scenario": "language_task", "trainer": "grpo", "dataset": "reverse"}


def columns(right, *, samples=1, exact=False, tasks="task"):
    """Return a table in which the first ``right`` of ten answers are correct."""
    correct = [int(k % 10 < right) for k in range(SIZE) for _ in range(samples)]
    return {
        "datapoint_id": [k for k in range(SIZE) for _ in range(samples)],
        "task_id": [f"{tasks}{k}" for k in range(SIZE) for _ in range(samples)],
        "correct": correct,
        "reward.agent": [float(one) if exact else 0.5 + one / 2 for one in correct],
    }


def make_run(runs, run_id, *tables, **changes):
    params = HyperParameters(**GIVEN).replace(changes)
    manifest = RunManifest(
        run_id=run_id,
        name="made",
        status="completed",
        arms={table.arm: params.to_dict() for table in tables},
        seeds={table.arm: params.seed for table in tables},
        code=CodeState(commit="c0ffee" * 7, dirty=False),
        dataset_hashes={table.arm: {"test": "b" * 64} for table in tables},
    )
    folder = RunFolder.create(runs, manifest)
    for table in tables:
        folder.write_table(table)
    return folder


@pytest.fixture
def run(tmp_path):
    tables = (ResultTable("test", columns(8)), ResultTable("test", columns(5), "other"))
    return make_run(tmp_path, "tasks", *tables)


def test_a_table_contains_correct_answers_without_decisions():
    given = columns(8)
    assert holds_results(given)
    assert holds_results({"datapoint_id": [0], "correct": [1]})
    table = ResultTable("test", {"datapoint_id": [0], "correct": [1]})
    assert ResultTable("test", given).columns == given
    assert len(table) == 1
    with pytest.raises(DataError, match="decision"):
        ResultTable("test", {**given, "y": given["correct"]})
    with pytest.raises(DataError, match="datapoint_id"):
        ResultTable("test", {"correct": [1]})


def test_accuracies_have_wilsons_interval_and_repeats_make_clusters():
    found = accuracy(columns(8))
    assert found == wilson_interval(32, SIZE)
    repeated = accuracy(columns(8, samples=4))
    assert (repeated.n, repeated.value) == (SIZE, 0.8)
    assert repeated.low == pytest.approx(found.low, rel=0.01), "repeated answers add no information"


def test_only_the_same_tasks_are_paired():
    assert "paired" in accuracy_difference(columns(8), columns(5)).method
    other = accuracy_difference(columns(8), columns(5, tasks="other"))
    assert "paired" not in other.method


def test_the_report_shows_accuracy_first_and_then_mean_reward(run):
    arms = read_content([run]).arms
    rows, differences = accuracy_rows(arms), difference_rows(arms)
    assert [row.estimate.value for row in rows] == [0.8, 0.5]
    assert [(row.is_decided, row.undecided) for row in rows] == [(False, "")] * 2
    assert differences[0].estimate.value == pytest.approx(0.3)
    assert "paired" in differences[0].estimate.method
    assert [(row.arm, row.estimate.value) for row in return_rows(arms)] == [
        ("main", pytest.approx(0.9)),
        ("other", pytest.approx(0.75)),
    ]
    assert len(return_difference_rows(arms)) == 1
    said = headline(rows, differences)
    assert said.startswith("“main” gets 80.0 % [65.2, 89.5] of 40 test tasks right; the difference")
    page = render(read_content([run]), "")
    assert 'id="accuracy-table"' in page
    assert 'id="return-table"' in page
    for word in ("Undecided</th>", "is chance", "Who decides"):
        assert word not in page


def test_rewards_of_different_tasks_are_not_paired(tmp_path):
    tables = (columns(8), columns(5, tasks="other"))
    made = [ResultTable("test", each, arm) for each, arm in zip(tables, ("main", "b"), strict=True)]
    arms = read_content([make_run(tmp_path, "tasks", *made)]).arms
    assert return_difference_rows(arms) == []


def test_a_reward_equal_to_accuracy_is_not_repeated(tmp_path):
    assert agents_by_return(columns(8, exact=True)) == []
    folder = make_run(tmp_path, "exact", ResultTable("test", columns(8, exact=True)))
    assert return_rows(read_content([folder]).arms) == []


def test_terminals_and_mlflow_show_accuracy_and_return(run):
    found = [each for each in results.test_results(run) if each.arm == "main"]
    assert [each.measure for each in found] == ["accuracy", "return of agent"]
    assert results.summary_line(found[:1]) == "main 80.0 %"
    assert len(results.result_table(run).rows) == 4
    tables = [table for table in run.read_tables() if table.arm == "main"]
    values = {key: value for key, _, value, _ in final_metrics(tables, 0)}
    assert values["final/test/accuracy"] == 0.8
    assert values["final/test/agent.return"] == pytest.approx(0.9)


def test_runs_are_compared_by_accuracy_and_reward(tmp_path):
    folders = [
        make_run(tmp_path, f"run{seed}", ResultTable("test", columns(8 - seed)), seed=seed)
        for seed in range(2)
    ]
    runs, _ = read_compared_runs(folders)
    assert check_same_tests(runs) == []
    found = comparison.test_metrics(runs)
    assert [metric.name for metric in found] == ["test", "test agent.return"]
    assert [metric.kind for metric in found] == ["accuracy", "metric"]
    assert [found[0].score(run) for run in runs] == [0.8, 0.7]
    other = make_run(tmp_path, "other", ResultTable("test", columns(8, tasks="x")), seed=7)
    with pytest.raises(DataError, match="same datapoints"):
        check_same_tests([*runs, *read_compared_runs([other])[0]])


@pytest.fixture
def told(tmp_path):
    """Return a run with transcripts: one file with correctness, one with only rewards."""
    folder = make_run(tmp_path, "told", ResultTable("test", columns(8)))
    rounds = [{"round": 0, "messages": [], "raw": {}, "decision": {}}]
    one = {"rollout": 0, "datapoint_id": 0, "question": "ab=", "solution": "ba", "rounds": rounds}
    known = [{**one, "correct": k == 0, "rewards": {"agent": 0.5}} for k in range(4)]
    unknown = [{**one, "correct": None, "rewards": {"agent": k / 4}} for k in range(4)]
    for name, lines in (("0", known), ("test", unknown)):
        save_report_transcripts(folder.transcripts_path / "main" / f"{name}.jsonl", lines)
    return folder


def test_transcripts_of_tasks_show_accuracy_or_mean_reward(told):
    first, last = read_transcripts([told])
    assert (first.told, first.accuracy.value) == ("1 of 4 right", 0.25)
    assert (last.told, last.accuracy) == ("mean reward 0.375", None)
    assert 'data-told="mean reward 0.375"' in render(read_content([told]), "")


in_browser = pytest.mark.skipif(
    not shutil.which("chromedriver"), reason="needs chromium and chromedriver"
)


@pytest.mark.slow
@pytest.mark.browser
@in_browser
def test_a_match_has_a_column_for_each_seat_with_folded_views_and_credit(tmp_path, browser):
    def turn(seat, view, reply, credit=None):
        yield {"agent": "environment", "channel": seat, "text": view}
        written = {} if credit is None else {"credit": credit}
        yield {"agent": seat, "channel": "main", "text": reply, **written}

    first = [*turn("one", "dealt a king", "bet", 0.5), *turn("two", "dealt a jack", "call")]
    rounds = [
        {"round": number, "messages": messages, "raw": {}, "decision": {}}
        for number, messages in enumerate([first, [*turn("one", "two called", "show", -0.25)]])
    ]
    match = {
        "rollout": 0,
        "datapoint_id": 0,
        "question": "Match 0",
        "solution": "",
        "rounds": rounds,
    }
    match |= {"correct": None, "rewards": {"one": 1.0, "two": -1.0}, "scores": {}}
    folder = make_run(tmp_path, "match", ResultTable("test", columns(8)))
    save_report_transcripts(folder.transcripts_path / "main" / "0.jsonl", [match])
    browser.get(build_report(folder).as_uri())
    for _ in range(100):
        cells = browser.find_elements("css selector", "#t-reading .t-seat")
        if cells:
            break
        time.sleep(0.05)
    texts = [cell.text.split("\n") for cell in cells]
    assert texts[:2] == [["one"], ["two"]]
    assert texts[2:4] == [["View", "bet", "credit +0.5"], ["View", "call"]]
    assert texts[4:] == [["View", "show", "credit -0.25"], [""]]
    cells[2].find_element("css selector", "summary").click()
    assert "dealt a king" in cells[2].text
    browser.find_element("css selector", "#t-search").send_keys("jack")
    for _ in range(100):
        marks = browser.find_elements("css selector", "#t-reading .t-seat mark")
        if marks:
            break
        time.sleep(0.05)
    assert [mark.text for mark in marks] == ["jack"], "the view that contains it is open"
    cells = browser.find_elements("css selector", "#t-reading .t-seat")
    left = [cell.location["x"] for cell in cells]
    assert left[0::2] == [left[0]] * 3
    assert left[1::2] == [left[1]] * 3


@pytest.mark.slow
@pytest.mark.browser
@in_browser
def test_answers_are_filtered_by_correctness_if_available(told, browser):
    browser.get(build_report(told).as_uri())

    def offered(file):
        chosen = browser.find_element("css selector", f'#t-file option[value="{file}"]')
        chosen.click()
        for _ in range(100):
            if len(browser.find_elements("css selector", "#t-list li[role=option]")) == 4:
                break
            time.sleep(0.05)
        buttons = browser.find_elements("css selector", ".t-filters button")
        return [button.text for button in buttons if button.is_displayed()]

    assert offered("0") == ["All 4", "Right 1", "Wrong 3", "Always failed 0"]
    browser.find_element("css selector", '[data-filter="wrong"]').click()
    assert offered("test") == ["All 4"]


CURVES = {
    "rollout/exact_match": 0.1,
    "rollout/reward": 0.3,
    "critic/rewards/mean": 0.3 + 1e-8,
    "critic/score/mean": 0.3,
    "critic/score/max": 1.1,
    "actor/kl": 0.01,
    "actor/sampler_kl": 1e-14,
    "actor/entropy": 1.2,
    "actor/loss": 0.02,
    "response_length/mean": 6.0,
    "response_length/max": 8.0,
    "training/num_updates": 2.0,
}


def test_plots_are_ordered_by_relevance_without_duplicates(tmp_path):
    folder = make_run(tmp_path, "curves", ResultTable("test", columns(8)))
    for iteration in range(8):
        values = {name: value * (1 + iteration / 10) for name, value in CURVES.items()}
        folder.append_metrics("train", iteration, values)
        folder.append_metrics("train_again", iteration, {"actor/other": iteration / 10})
        folder.append_metrics("validate", iteration, {"validation_exact_match": iteration / 10})
    content = read_content([folder])
    figures = curve_figures(content.arms, TRAIN)
    assert not any("other" in figure.title for figure in figures), "of a kind whose name goes on"
    assert [figure.title for figure in figures if not figure.folded] == [
        "Rollout · exact match",
        "Rollout · reward",
        "Actor · KL",
        "Actor · entropy",
        "Response length · mean",
        "Actor · loss",
    ]
    notes = {figure.title: figure.note for figure in figures if figure.note}
    assert notes["Critic · rewards · mean"] == "the same as “Rollout · reward”"
    assert notes["Critic · score · mean"] == "the same as “Rollout · reward”"
    layouts = {figure.title: figure.layout["yaxis"] for figure in figures}
    assert layouts["Rollout · exact match"]["tickformat"] == ".3~%"
    units = [layouts[name]["title"]["text"] for name in ("Actor · KL", "Response length · mean")]
    assert units == ["nats", "tokens"]
    page = render(content, "")
    assert page.index("Validation exact match") < page.index("Rollout · exact match")


def test_the_metric_of_an_evaluator_comes_before_the_return(tmp_path):
    plain = {name: column for name, column in columns(8).items() if name != "correct"}
    given = {**plain, "metric.acceptance": [i % 4 != 0 for i in range(SIZE)]}
    given["metric.acceptance"] = [float(value) for value in given["metric.acceptance"]]
    folder = make_run(tmp_path, "accepted", ResultTable("test", given))
    found = results.test_results(folder)
    assert [each.measure for each in found] == ["acceptance", "return of agent"]
    assert found[0].estimate.value == 0.75
    assert results.summary_line(found).startswith("main acceptance 0.75")
    rows = return_rows(read_content([folder]).arms)
    assert [row.measure for row in rows] == ["acceptance", "return of agent"]
    said = headline([], [], returns=rows)
    assert said.startswith("“main” reaches a mean acceptance of 0.75")
    sent = {name: value for name, _, value, _ in final_metrics(folder.read_tables(), 0)}
    assert sent["final/test/acceptance"] == 0.75
    assert sent["final/test/acceptance.low"] < 0.75 < sent["final/test/acceptance.high"]


def test_answers_without_a_metric_are_excluded_from_its_mean():
    given = {"datapoint_id": [0, 1, 2], "metric.acceptance": [1.0, None, 0.0]}
    found = mean_metric(given, "acceptance")
    assert (found.value, found.n) == (0.5, 2)
    assert evaluator_metrics({"metric.acceptance": [None]}) == []
