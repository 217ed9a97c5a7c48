"""Agents that did not act or learn are reported in the terminal, the report and the events."""

from __future__ import annotations

import pytest

from flows.cli.runs import print_results
from flows.runs.result import ExperimentResult
from ratchet.parameters.settings import ExperimentSettings
from ratchet.reports import build_report
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_warnings import run_warnings


def _stats(agent, turns, unread=0, silent=0, prefix=""):
    counts = {"num_turns": turns, "num_invalid_replies": unread, "num_turns_without_reply": silent}
    return {f"{prefix}{agent}.{name}": float(value) for name, value in counts.items()}


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "runs", RunManifest(run_id="debate-1", name="debate"))


def test_an_agent_that_never_acts_is_reported(folder):
    folder.append_metrics("log_stats", 1, _stats("verifier", 8) | _stats("prover0", 0))
    folder.append_metrics(
        "test", 1, _stats("verifier", 8, prefix="test_") | _stats("prover0", 0, prefix="test_")
    )
    (warning,) = run_warnings(folder)
    assert "'prover0' never acted" in warning
    assert "min_message_rounds" in warning


def test_an_agent_that_acts_in_one_stage_is_not_reported(folder):
    folder.append_metrics("log_stats", 1, _stats("prover0", 0))
    folder.append_metrics("log_stats", 2, _stats("prover0", 1))
    assert run_warnings(folder) == []


@pytest.mark.parametrize(("unread", "warned"), [(10, False), (11, True)])
def test_more_than_half_of_the_replies_unreadable_is_reported(folder, unread, warned):
    folder.append_metrics("log_stats", 1, _stats("prover0", 12, unread=unread, silent=2))
    assert [f"{unread} of {10 + unread} replies" in text for text in run_warnings(folder)] == (
        [True] * warned
    )


def test_a_group_that_never_receives_data_is_reported(folder):
    folder.append_metrics("create_fine_tune_jobs", 0, {"prover.insufficient_data": 1.0})
    folder.append_metrics("create_fine_tune_jobs", 1, {"verifier.insufficient_data": 0.0})
    assert ["'prover' never learned" in text for text in run_warnings(folder)] == [True]


@pytest.mark.parametrize(("right", "warned"), [((0.0, 0.03), True), ((0.0, 0.05), False)])
def test_answers_that_are_hardly_ever_right_are_reported(folder, right, warned):
    for iteration, share in enumerate(right):
        values = {"rollout/exact_match": share, "rollout/num_rollouts": 128.0}
        folder.append_metrics("train", iteration, values)
    warnings = run_warnings(folder)
    assert ["4 of 256 answers" in text and "warm_up" in text for text in warnings] == [
        True
    ] * warned


def test_warnings_name_the_arm_if_there_are_several(folder):
    folder.append_metrics("log_stats", 1, _stats("prover0", 0), arm="main")
    folder.append_metrics("log_stats", 1, _stats("prover0", 3), arm="other")
    (warning,) = run_warnings(folder)
    assert warning.endswith("(arm main)")


def test_warnings_are_in_the_report_and_on_the_last_line(folder, capsys):
    folder.append_metrics("log_stats", 1, _stats("prover0", 0))
    assert "never acted" in build_report(folder).read_text()
    settings = ExperimentSettings(tracking=False)
    print_results(folder, settings, ExperimentResult(folder.run_id, str(folder.path)))
    assert "'prover0' never acted" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"critic/advantages/min": 0.0, "critic/advantages/max": 0.0}, "all advantages were"),
        ({"actor/grad_norm": 0.0, "actor/loss": 0.1}, "the gradient was"),
        ({"loss_objective": 0.0, "grad_norm": 0.1}, "the loss was"),
        ({"left/actor/loss": 0.0, "right/actor/loss": 0.0}, "the loss of left and right was"),
    ],
)
def test_training_without_learning_is_reported(folder, values, what):
    learned = {name: 0.5 for name in values}
    for iteration in range(4):
        folder.append_metrics("train", iteration, values if iteration else learned)
    (warning,) = run_warnings(folder)
    assert f"had no effect in most iterations, in which {what} exactly 0" in warning


@pytest.mark.parametrize("model", ["", "left/"])
def test_training_that_mostly_learns_is_not_reported(folder, model):
    for iteration in range(4):
        values = {f"{model}actor/grad_norm": float(iteration > 1), f"{model}actor/loss": 0.0}
        folder.append_metrics("train", iteration, values)
    assert run_warnings(folder) == []
