"""Recomputation in changed chat model experiments: forks, edits, budgets, retests."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from flows import fork_experiment, plan_experiment, resume_experiment, run_experiment
from flows.planning.plan import check_plan
from flows.process.environment import prepare_environment
from ratchet.errors import BudgetExceededError, ParameterError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.run_folder import RunFolder

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _quiet(lab, monkeypatch):
    monkeypatch.setenv("TINY_LOG", str(lab.log))
    monkeypatch.setenv("TINY_SERVICE", str(lab.folder / "service"))
    prepare_environment(lab.folder / "home")


def settings(lab, **changes):
    return ExperimentSettings.from_dict(lab.settings(**changes))


def params(num_iterations=3, **changes):
    data = {
        "scenario": "code_validation",
        "dataset": "generated",
        "trainer": {"module_path": "tiny_text_trainer.py", "class_name": "TinyTextTrainer"},
        "rl": {"num_iterations": num_iterations, "rollouts_per_iteration": 6},
        "text_rl": {"test_scheme": "all"},
        "code_validation": {"num_train": 4, "num_test": 4},
        "agents": {"_default": {"use_dummy_api": True}},
    }
    return {**data, **changes}


def run(lab, own=None, **changes):
    return run_experiment(params(**changes), own or settings(lab), name="tiny")


def news(lab, before):
    """List the work done since, except calls."""
    return [work for work in lab.done()[before:] if not work.startswith("call")]


def test_a_fork_from_a_stage_shares_and_does_not_repay_earlier_stages(lab):
    parent = run(lab)
    before = len(lab.done())
    change = {"pure_text_ei.reward_threshold": 0.5}
    child = fork_experiment(parent.run_id, "1:create_fine_tune_jobs", change, settings(lab))
    assert child.run_id != parent.run_id
    expected = {"await 1", "sample 2", "stats 2", "test 2"}
    assert set(news(lab, before)) == expected, "job 1 is adopted: it was requested before"
    theirs = {entry[:3]: entry[3] for entry in lab.metrics(parent.to_dict())}
    metrics = {entry[:3]: entry[3] for entry in lab.metrics(child.to_dict())}
    shared = [place for place in theirs if place[2] < 2 and "fine_tune" not in place[1]]
    assert shared
    assert all(metrics[place] == theirs[place] for place in shared)
    before = len(lab.done())
    again = fork_experiment(parent.run_id, "1:create_fine_tune_jobs", change, settings(lab))
    assert (again.run_id, again.computed) == (child.run_id, 0)
    assert resume_experiment(child.run_id, settings(lab)).computed == 0
    assert news(lab, before) == []


def test_a_fork_from_an_iteration_starts_with_its_rollouts(lab):
    parent = run(lab)
    before = len(lab.done())
    changes = {"seed": 7, "code_validation.dataset_seed": 1}
    fork_experiment(parent.run_id, "2", changes, settings(lab))
    assert set(news(lab, before)) == {"sample 2", "stats 2", "test 2"}


def test_a_fork_from_a_missing_stage_is_refused(lab):
    parent = run(lab)
    with pytest.raises(ParameterError, match="await_fine_tune_jobs 6"):
        fork_experiment(parent.run_id, "7", {}, settings(lab))
    with pytest.raises(ParameterError, match="create_fine_tune_jobs"):
        fork_experiment(parent.run_id, "1:dance", {}, settings(lab))


def test_resume_reuses_finished_stages_after_a_code_change(lab, monkeypatch):
    plugin = lab.folder / "tiny_text_trainer.py"
    shutil.copy(HERE / "tiny_text_trainer.py", plugin)
    own = settings(lab, base_dir=str(lab.folder))
    monkeypatch.setenv("RATCHET_FAULT", "stage=await_fine_tune_jobs;iteration=1;kind=raise")
    with pytest.raises(Exception, match="RATCHET_FAULT"):
        run(lab, own)
    (folder,) = (lab.folder / "runs").iterdir()
    monkeypatch.delenv("RATCHET_FAULT")
    plugin.write_text(plugin.read_text().replace('note(f"await', 'note(f"edited await'))
    before = len(lab.done())
    resumed = resume_experiment(folder.name, own)
    assert news(lab, before)[0] == "edited await 1"
    assert set(news(lab, before)[1:]) == {"sample 2", "stats 2", "test 2"}
    events = (Path(resumed.folder) / "events.jsonl").read_text()
    assert "tiny_text_trainer changed" in events
    before = len(lab.done())
    assert resume_experiment(folder.name, own).computed == 0
    assert news(lab, before) == []


def test_a_run_stops_at_its_budget_and_resumes_with_a_higher_one(lab):
    with pytest.raises(BudgetExceededError, match="ratchet resume"):
        run(lab, settings(lab, budget=0.165, retries=2, retry_delay_seconds=0.01))
    calls = [work for work in lab.done() if work.startswith("call")]
    assert 14 <= len(calls) <= 16, (
        "6 rollouts, 6 tests, calls within the remaining budget, no retry"
    )
    (folder,) = (lab.folder / "runs").iterdir()
    manifest = RunFolder(folder).manifest
    assert manifest.status == "failed"
    with pytest.raises(BudgetExceededError):
        resume_experiment(folder.name, settings(lab, budget=0.2))
    resume_experiment(folder.name, settings(lab, budget=10.0))
    counts = Counter(work for work in lab.done() if work.startswith("call"))
    assert len(counts) == 36
    assert set(counts.values()) == {1}, "a call was billed twice"
    usage = json.loads((folder / "usage.json").read_text())
    assert sum(part["cost"] for part in usage["by_stage"].values()) == pytest.approx(0.36)
    assert usage["billed_at_least"] == pytest.approx(0.36)
    assert usage["billed_at_most"] == pytest.approx(0.36)
    (folder / "ledger.jsonl").unlink()  # as in a run from before ledgers existed
    resume_experiment(folder.name, settings(lab, budget=10.0))
    assert json.loads((folder / "usage.json").read_text())["billed_at_most"] == pytest.approx(0.36)


def test_cached_stages_do_not_count_towards_the_budget(lab):
    run(lab)
    other = run(lab, settings(lab, budget=0.135, run_id="other"), num_iterations=4)
    assert other.computed > 0


def test_the_plan_contains_requests_and_is_refused_above_the_budget(lab):
    plan = plan_experiment(params(), settings(lab))
    assert lab.done() == []
    by_stage = Counter(stage.stage for stage in plan if stage.estimate is not None)
    assert by_stage["sample_rollouts"] == 3
    assert by_stage["await_fine_tune_jobs"] == 2
    assert {s.num_rollouts for s in plan if s.stage == "sample_rollouts"} == {6}
    check_plan(plan, 0.01)  # Ratchet's own service costs nothing
    paid = {"_default": {"base_url": None, "model_name": "gpt-4o-mini-2024-07-18"}}
    with pytest.raises(BudgetExceededError, match="may cost up to"):
        check_plan(plan_experiment(params(agents=paid), settings(lab)), 0.0001)
    unknown = {"_default": {"base_url": "http://here/v1", "model_name": "mine"}}
    with pytest.raises(BudgetExceededError, match="no price for mine"):
        check_plan(plan_experiment(params(agents=unknown), settings(lab)), 100.0)
    result = run(lab)
    stages = RunFolder(result.folder).manifest.stages
    assert {(s.stage, s.iteration, s.key) for s in stages} == {
        (s.stage, s.iteration, s.key) for s in plan
    }
    assert all(stage.hit for stage in plan_experiment(params(), settings(lab)))


def test_a_run_inherits_the_parameters_of_its_base_run(lab):
    base = run(lab)
    base_run = {"base_run_type": "parameters", "run_id": base.run_id}
    before = len(lab.done())
    later = run_experiment(
        {"base_run": base_run, "rl": {"num_iterations": 4}}, settings(lab), name="later"
    )
    assert set(news(lab, before)) >= {"sample 3", "await 2", "test 3"}
    assert "sample 2" not in news(lab, before)
    assert later.computed == 6


def test_tests_are_rerun_on_the_states_of_an_earlier_run(lab):
    base = run(lab, text_rl={"test_scheme": "none"})
    assert [work for work in lab.done() if work.startswith("test")] == ["test test"]
    base_run = {"base_run_type": "rerun_tests", "run_id": base.run_id}
    before = len(lab.done())
    text_rl = {"test_scheme": "all", "test_on_whole_dataset": False}
    later = run_experiment({"base_run": base_run, "text_rl": text_rl}, settings(lab), name="again")
    assert news(lab, before) == ["test 0", "test 1", "test 2"]
    points = [entry[1:3] for entry in lab.metrics(later.to_dict())]
    assert [i for stage, i in points if stage == "test_during_training"] == [0, 1, 2]
    assert later.states == base.states
    with pytest.raises(ParameterError, match="lower rl"):
        run_experiment(
            {"base_run": base_run, "rl": {"num_iterations": 9}}, settings(lab), name="too-long"
        )
