"""Run ids, arms and the starting points of forks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.planning.plan import (
    PlannedStage,
    plan,
    plan_experiment,
    remaining,
    remaining_steps,
)
from flows.runs.pinned_stages import arm_keys
from flows.runs.resolve import (
    absolute_settings,
    read_arms,
    resolve,
    resolve_file,
    resolve_parameters,
    stable_run_id,
)
from flows.runs.setup import open_run
from ratchet.errors import ParameterError, StoreError
from ratchet.language_models.estimates import StageEstimate
from ratchet.language_models.ledger import Charge, Ledger
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.garbage_collection import store_users


@pytest.fixture(scope="module")
def main():
    return HyperParameters(scenario="graph_isomorphism", trainer="vanilla_ppo", dataset="er1000")


def test_equal_parameters_give_the_same_run_id(main):
    arms = read_arms(main, {"slow": {"rl.lr": 0.001}})
    run_id = stable_run_id("demo", arms)
    assert run_id.startswith("demo-")
    assert run_id == stable_run_id("demo", read_arms(main, {"slow": {"rl": {"lr": 0.001}}}))
    assert run_id != stable_run_id("demo", read_arms(main, None))
    assert run_id != stable_run_id("demo", arms, "parent")
    assert stable_run_id("my demo!", arms).startswith("my-demo-")


def test_an_arm_is_the_main_arm_with_changes(main):
    arms = read_arms(main, {"slow": {"rl.lr": 0.001}, "whole": main})
    assert list(arms) == ["main", "slow", "whole"]
    assert arms["slow"] == main.replace({"rl.lr": 0.001})
    assert arms["whole"] == main
    with pytest.raises(ParameterError, match=r"arms\.main"):
        read_arms(main, {"main": {}})
    with pytest.raises(ParameterError, match=r"arms\.x"):
        read_arms(main, {"x": {"rl.lrr": 1}})


def test_settings_are_independent_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = absolute_settings(ExperimentSettings(store="s3://bucket/x"))
    assert settings.home == str(tmp_path / ".ratchet")
    assert settings.runs == str(tmp_path / "runs")
    assert settings.store == "s3://bucket/x"


def test_flow_parameters_resolve_to_the_same_experiment(main, tmp_path):
    """Keys must be the same in retried flow runs and in deployments."""
    more = main.replace({"graph_isomorphism.extra_test_sets": {"wl2": {"num_pairs": 20}}})
    settings = ExperimentSettings(home=str(tmp_path / "home"), runs=str(tmp_path / "runs"))
    resolved = resolve(more, settings, {"plain": main, "slow": {"rl.lr": 0.001}}, name="demo")
    assert list(resolved.arms) == ["main", "plain", "slow"]
    parameters = json.loads(json.dumps(resolved.flow_parameters()))
    again = resolve_parameters(**parameters)
    assert again == resolved
    assert again.arms["plain"] == main, "an arm with fewer values than the main arm inherits none"
    assert [keys.test().key for keys in again.keys] == [keys.test().key for keys in resolved.keys]


FILE = Path(__file__).parents[2] / "experiments" / "binary_erasure_channel.yaml"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_resolves_to_the_run_of_the_command_line(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve(kind(FILE)) == resolve_file(str(FILE))
    assert len(resolve(kind(FILE)).arms) == 3
    assert plan_experiment(kind(FILE)) == plan(resolve_file(str(FILE)))


def test_given_settings_replace_a_files_except_its_folder(tmp_path):
    settings = ExperimentSettings(home=str(tmp_path / "h"), runs=str(tmp_path / "r"))
    resolved = resolve(FILE, settings, {"more": {"seed": 1}}, name="mine")
    assert resolved.settings.home == settings.home
    assert resolved.settings.base_dir == str(FILE.parent)
    assert resolved.run_id.startswith("mine-")
    assert [*resolved.arms] == [*resolve_file(str(FILE)).arms, "more"]


@pytest.mark.parametrize("wrong", [3, None, ["a"]])
def test_other_types_than_parameters_are_refused(wrong):
    with pytest.raises(ParameterError, match=r"expected HyperParameters, a mapping, or the path"):
        resolve(wrong)


def test_keys_are_computed_once_for_progress_and_run(main, tmp_path, monkeypatch):
    made = []

    def counted(*args):
        made.append(args)
        return arm_keys(*args)

    monkeypatch.setattr("flows.runs.resolve.arm_keys", counted)
    resolved = resolve(main, ExperimentSettings(home=str(tmp_path), runs=str(tmp_path)))
    assert made == [], "keys must be computed lazily"
    assert remaining_steps(resolved).total() > 0
    run = open_run(resolved, None)
    run.close()
    assert [session.keys for session in run.sessions] == resolved.keys
    assert plan(resolved)
    assert len(made) == 1


def test_an_opened_run_has_its_prompts_its_earlier_costs_and_a_note_in_the_store(
    tmp_path, monkeypatch
):
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    for agent in ("prover", "verifier"):
        (prompts / f"{agent}.txt").write_text(f"{agent}: $question $solution")
    monkeypatch.setattr("flows.runs.setup.spent_by_run", lambda *_: 2.5)
    text = HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset="generated",
        code_validation={"prompt_templates": "prompts"},
    )
    folders = {name: str(tmp_path / name) for name in ("home", "runs")}
    settings = ExperimentSettings(base_dir=str(tmp_path), tracking=False, **folders)
    resolved = resolve(text, settings, {"built_in": {"code_validation.prompt_templates": "full"}})
    run = open_run(resolved, None)
    kept = run.folder.artifacts_path / "files"
    run.close()
    assert (kept / "main-prover/prover.txt").read_text() == "prover: $question $solution"
    assert Ledger(None, run.folder.ledger_path).billed == Charge(2.5, 2.5)
    assert [user.runs for user in store_users(resolved.store)] == [folders["runs"]]
    assert "$max_questions" in (kept / "built_in-verifier/verifier.txt").read_text()


def test_a_runs_folder_that_cannot_be_created_is_named(main, tmp_path):
    (tmp_path / "file").touch()
    settings = ExperimentSettings(home=str(tmp_path), runs=str(tmp_path / "file"), tracking=False)
    with pytest.raises(StoreError, match=r"file/.* cannot be created .*setting `runs`"):
        open_run(resolve(main, settings), None)


def test_importing_flows_and_planning_needs_no_prefect_or_torch():
    code = (
        "import sys, flows, flows.runs.resolve, flows.runs.run;"
        "import flows.planning.plan, flows.runs.derived_runs;"
        "heavy = {'prefect', 'torch', 'mlflow', 'tensordict'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sweep_points_and_fork_stages_are_parsed(main):
    from flows.runs.derived_runs import parse_stage
    from flows.sweeps.members import resolve_sweep
    from flows.sweeps.points import grid_points

    assert grid_points({"seed": [0, 1], "rl.lr": [0.1]}) == [
        {"seed": 0, "rl.lr": 0.1},
        {"seed": 1, "rl.lr": 0.1},
    ]
    with pytest.raises(ParameterError, match="seed"):
        resolve_sweep(main, {"seed": []}, None, None, name="demo")
    assert [parse_stage(stage) for stage in (3, "3", "3:train")] == [3, 3, 3]
    with pytest.raises(ParameterError, match="3:dance"):
        parse_stage("3:dance")


def test_what_remains_counts_missing_stages_once_and_no_cached_ones():
    def planned(stage, hit, key, calls):
        estimate = None if calls is None else StageEstimate(stage, 0, calls=calls)
        return PlannedStage("main", stage, 0, 0, hit, "", key, estimate=estimate)

    stages = [
        planned("sample_rollouts", True, "a", 100),
        planned("sample_rollouts", False, "b", 10),
        planned("sample_rollouts", False, "b", 10),  # of another arm
        planned("test", False, "c", 1),
        planned("train", False, "d", None),
    ]
    assert remaining(stages).calls == 11
    assert remaining(stages[:1]) is None
