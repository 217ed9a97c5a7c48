"""Which run it is, which arms it has, and where a fork begins."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flows.runs.resolving import absolute_settings, read_arms, stable_run_id
from ratchet.errors import ParameterError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings


@pytest.fixture(scope="module")
def main():
    return HyperParameters(scenario="graph_isomorphism", trainer="vanilla_ppo", dataset="er1000")


def test_the_same_parameters_are_the_same_run(main):
    arms = read_arms(main, {"slow": {"rl.lr": 0.001}})
    run_id = stable_run_id("demo", arms)
    assert run_id.startswith("demo-")
    assert run_id == stable_run_id("demo", read_arms(main, {"slow": {"rl": {"lr": 0.001}}}))
    assert run_id != stable_run_id("demo", read_arms(main, None))
    assert run_id != stable_run_id("demo", arms, "parent")
    assert stable_run_id("my demo!", arms).startswith("my-demo-")


def test_an_arm_is_the_main_one_with_changes(main):
    arms = read_arms(main, {"slow": {"rl.lr": 0.001}, "whole": main})
    assert list(arms) == ["main", "slow", "whole"]
    assert arms["slow"] == main.replace({"rl.lr": 0.001})
    assert arms["whole"] == main
    with pytest.raises(ParameterError, match=r"arms\.main"):
        read_arms(main, {"main": {}})
    with pytest.raises(ParameterError, match=r"arms\.x"):
        read_arms(main, {"x": {"rl.lrr": 1}})


def test_settings_mean_the_same_in_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = absolute_settings(ExperimentSettings(store="s3://bucket/x"))
    assert settings.home == str(tmp_path / ".ratchet")
    assert settings.runs == str(tmp_path / "runs")
    assert settings.store == "s3://bucket/x"


def test_importing_flows_and_planning_needs_no_prefect_or_torch():
    code = (
        "import sys, flows, flows.runs.resolving, flows.runs.running;"
        "import flows.planning.plan, flows.runs.forking;"
        "heavy = {'prefect', 'torch', 'mlflow', 'tensordict'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sweep_points_and_fork_stages_are_read():
    from flows.runs.forking import parse_stage
    from flows.sweeps.grid import grid_points

    assert grid_points({"seed": [0, 1], "rl.lr": [0.1]}) == [
        {"seed": 0, "rl.lr": 0.1},
        {"seed": 1, "rl.lr": 0.1},
    ]
    with pytest.raises(ParameterError, match="seed"):
        grid_points({"seed": []})
    assert [parse_stage(stage) for stage in (3, "3", "3:train")] == [3, 3, 3]
    with pytest.raises(ParameterError, match="3:dance"):
        parse_stage("3:dance")
