"""An experiment runs without Prefect, with the stages and the run folder of one with Prefect.

The script that runs it also checks that Prefect is not imported.
"""

from __future__ import annotations

import pytest

from flows import run_without_prefect
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.run_folder import RunFolder
from tasks.stages.faults import VARIABLE, InjectedFault

PLAIN = "run_without_prefect"
CHAT = {
    "scenario": "code_validation",
    "dataset": "generated",
    "trainer": "pure_text_ei",
    "nip_protocol": {"max_message_rounds": 3},
    "code_validation": {"num_train": 6, "num_test": 2},
    "rl": {"num_iterations": 2, "rollouts_per_iteration": 6},
    "agents": {"_default": {"use_dummy_api": True}},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["chat", "networks"])
@pytest.mark.parametrize(
    "actions",
    [
        (PLAIN, "run"),
        ("run", PLAIN),
        pytest.param((PLAIN, PLAIN), marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_finds_the_stages_of_the_one_before_it(new_lab, family, actions):
    lab = new_lab()
    hyper_params = CHAT if family == "chat" else lab.hyper_params()
    first, second = (lab.run(hyper_params, action=action) for action in actions)
    assert first["computed"] == second["cached"] > 5
    assert first["cached"] == second["computed"] == 0
    for name in ("run_id", "metrics", "states"):
        assert first[name] == second[name]
    folder = RunFolder(first["folder"])
    assert folder.manifest.status == "completed"
    assert folder.report_path.is_file()


@pytest.mark.slow
@pytest.mark.parametrize("action", [pytest.param(PLAIN, marks=pytest.mark.exhaustive), "run"])
def test_a_killed_run_is_resumed_to_the_same_end(new_lab, action):
    lab, whole = new_lab(), new_lab()
    expected = whole.run(action=PLAIN)
    lab.kill("stage=train;iteration=6", action=PLAIN)
    result = lab.run(action=action)
    assert result["cached"] > 0
    assert result["computed"] < expected["computed"]
    assert lab.weights(result) == whole.weights(expected)
    assert lab.metrics(result) == whole.metrics(expected)


def test_a_search_on_programs_tests_its_validation_split(tmp_path):
    """Its programs keep the ids that they have in the training data, which exceed its size."""
    search = {"validation": {"size": 0.2, "replaces_test": True}, "rl": {"num_iterations": 0}}
    searched = {**CHAT, **search, "code_validation": {"num_train": 40, "num_test": 4}}
    places = {"home": str(tmp_path), "runs": str(tmp_path / "runs"), "run_id": "r"}
    run_without_prefect(searched, ExperimentSettings(**places, tracking=False, progress="none"))
    (table,) = RunFolder(tmp_path / "runs" / "r").read_tables()
    ids = table.columns["datapoint_id"]
    assert max(ids) >= len(ids) >= 9
    assert set(table.columns["y"]) == {0, 1}
    assert [bug == 0 for bug in table.columns["bug"]] == [y == 1 for y in table.columns["y"]]


def test_a_stage_is_retried_and_then_its_error_ends_the_run(tmp_path, monkeypatch):
    places = {"home": str(tmp_path), "runs": str(tmp_path / "runs"), "run_id": "r"}
    settings = ExperimentSettings(
        **places, tracking=False, progress="none", retries=1, retry_delay_seconds=0
    )
    monkeypatch.setenv(VARIABLE, "stage=log_stats;kind=raise")
    with pytest.raises(InjectedFault):
        run_without_prefect(CHAT, settings)
    folder = RunFolder(tmp_path / "runs" / "r")
    assert folder.manifest.status == "failed"
    log = (folder.path / "log.jsonl").read_text()
    assert "log stats main 0 failed at attempt 1, retrying" in log
    assert "log stats main 0 failed at attempt 2, no retries left" in log
    monkeypatch.delenv(VARIABLE)
    result = run_without_prefect(CHAT, settings)
    assert (result.computed, result.cached) == (4, 5), (
        "concurrent stages have finished nevertheless"
    )
    assert RunFolder(folder.path).manifest.status == "completed"
