"""Grids on the command line, and members with the same run ids as in `ratchet run`."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from flows.runs.resolve import MAIN_ARM, stable_run_id
from flows.sweeps.members import changes_of_data, resolve_sweep, sweep_id, sweep_members
from flows.sweeps.points import grid_points, read_grid
from flows.sweeps.summary import sync_mlflow
from ratchet.errors import DataError, ParameterError, RunNotFoundError
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.sweep_folder import (
    SweepMemberRecord,
    SweepRecord,
    read_sweep,
    write_sweep,
)

FILE = """
scenario: graph_isomorphism
trainer: vanilla_ppo
dataset: generated
rl: {num_iterations: 3}
arms:
  slow: {rl.lr: 0.1}
"""


def members_of(grid, arms=None, **changes):
    plain = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "generated"}
    base = HyperParameters(**{**plain, **changes})
    return sweep_members(base, grid_points(grid), arms, name="exp", settings=ExperimentSettings())


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("seed=0..4", [0, 1, 2, 3, 4]),
        ("seed=-1..1,7", [-1, 0, 1, 7]),
        ("interaction_protocol=nip,adp", ["nip", "adp"]),
        ("rl.lr=1e-3, 0.01", [0.001, 0.01]),
        ("rl.anneal_lr=true,false", [True, False]),
        ("rl.frames_per_batch=null,64", [None, 64]),
        ("graph_isomorphism.graph_sizes=[7,8],[9]", [[7, 8], [9]]),
        ("dataset='a,b',c", ["a,b", "c"]),
    ],
)
def test_ranges_and_lists_are_read(text, values):
    assert read_grid([text]) == ({text.partition("=")[0]: values}, [])


def test_parts_of_the_file_can_be_removed():
    assert read_grid(["seed=0,1", "~arms.honest"]) == ({"seed": [0, 1]}, ["~arms.honest"])


def test_a_single_value_applies_to_all_members():
    grid, overrides = read_grid(["seed=0,1", "rl.lr=0.1", "settings.home=/x", "a.sizes=[7,8]"])
    assert grid == {"seed": [0, 1]}
    assert overrides == ["rl.lr=0.1", "settings.home=/x", "a.sizes=[7,8]"]


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["seed"], "expected a.b=VALUES"),
        (["=3"], "expected a.b=VALUES"),
        (["seed="], "no values"),
        (["seed=4..0"], "ends before its start"),
        (["seed=0..2,1"], "duplicate value 1"),
        (["seed=0,1", "seed=2"], "seed is assigned twice"),
        (["settings.num_threads=1,2"], "expected a single value"),
        (["seed=[0"], "bad YAML"),
    ],
)
def test_invalid_grids_are_refused(assignments, message):
    with pytest.raises(ParameterError, match=message):
        read_grid(assignments)


def test_every_combination_is_a_member_and_the_last_parameter_changes_fastest():
    points = grid_points({"interaction_protocol": ["nip", "adp"], "seed": [0, 1]})
    assert [tuple(point.values()) for point in points] == [
        ("nip", 0),
        ("nip", 1),
        ("adp", 0),
        ("adp", 1),
    ]
    assert grid_points({}) == [{}]


def test_a_member_is_the_run_of_the_same_command_and_a_longer_sweep_has_the_same_members(tmp_path):
    file = tmp_path / "exp.yaml"
    file.write_text(FILE)
    base = load_experiment(file)
    grid = {"interaction_protocol": ["nip", "adp"], "seed": [0, 1]}
    settings = ExperimentSettings()
    arguments = {"name": base.name, "settings": settings}
    members = sweep_members(base.hyper_params, grid_points(grid), base.arm_changes, **arguments)
    alone = load_experiment(file, ["seed=1", "interaction_protocol=adp"])
    arms = {MAIN_ARM: alone.hyper_params, **alone.arms}
    assert members[3].run_id == stable_run_id("exp", arms)
    assert members[3].experiment.arms["slow"].seed == 1
    points = grid_points({**grid, "seed": [0, 1, 2]})
    longer = sweep_members(base.hyper_params, points, base.arm_changes, **arguments)
    assert {member.run_id for member in members} < {member.run_id for member in longer}
    assert sweep_id("exp", members) == sweep_id("exp", members[::-1])
    assert sweep_id("exp", members) != sweep_id("exp", longer)


def test_parameters_that_change_the_data_are_listed():
    grid = {"interaction_protocol": ["nip", "adp"], "seed": [0, 1]}
    assert changes_of_data(members_of(grid)) == ["seed"]
    fixed = members_of(grid, **{"graph_isomorphism": {"dataset_seed": 0}})
    assert changes_of_data(fixed) == []
    assert changes_of_data(members_of({})) == []


def test_an_invalid_combination_is_refused_before_any_member_runs():
    with pytest.raises(ParameterError, match=r"trainer=pure_text_ei.*\n.*chat models"):
        members_of({"trainer": ["vanilla_ppo", "pure_text_ei"]})
    with pytest.raises(ParameterError, match=r"rl.lr=-1"):
        members_of({"rl.lr": [0.1, -1]})


def test_the_record_is_found_by_its_prefix_and_keeps_its_creation_time(tmp_path):
    member = SweepMemberRecord(run_id="exp-1", changes={"seed": 0})
    record = SweepRecord(sweep_id="exp-sweep-12", name="exp", grid={"seed": [0]}, members=[member])
    folder = write_sweep(tmp_path, record)
    again = write_sweep(tmp_path, record.model_copy(update={"created": 0.0}))
    assert folder == again
    assert read_sweep(tmp_path, "exp-sweep") == record
    assert read_sweep(tmp_path, str(folder)) == record
    assert read_sweep(tmp_path, "other") is None
    write_sweep(tmp_path, record.model_copy(update={"sweep_id": "exp-sweep-34"}))
    with pytest.raises(RunNotFoundError, match="exp-sweep-12, exp-sweep-34"):
        read_sweep(tmp_path, "exp-sweep")
    for name, message in (("a/b", "expected a name"), ("run-1", "a run's name")):
        (tmp_path / "run-1").mkdir(exist_ok=True)
        (tmp_path / "run-1" / "manifest.json").touch()
        with pytest.raises(DataError, match=message):
            write_sweep(tmp_path, record.model_copy(update={"sweep_id": name}))
    (folder / "sweep.json").write_text(json.dumps({"name": 3}))
    with pytest.raises(DataError, match="not a record of a sweep"):
        read_sweep(tmp_path, "exp-sweep-12")


@pytest.mark.slow
@pytest.mark.parametrize("mirrors", [["tensorboard"], ["mlflow"]])
def test_mlflow_receives_a_sweep_only_as_a_mirror(mirrors, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folders = {"home": str(tmp_path / "home"), "runs": str(tmp_path / "runs")}
    settings = ExperimentSettings.from_dict({**folders, "mirrors": mirrors})
    base = HyperParameters(scenario="graph_isomorphism", trainer="vanilla_ppo", dataset="generated")
    resolved = resolve_sweep(base, {"seed": [0, 1]}, settings, None, name="exp")
    write_sweep(resolved.settings.runs, resolved.record(resolved.members))
    sync_mlflow(resolved)
    assert (tmp_path / "home" / "mlflow.db").exists() == ("mlflow" in mirrors)


def test_a_member_whose_result_prefect_has_lost_is_run_once_more(monkeypatch):
    from flows import sweep_flow  # imports Prefect

    ends = [None, {"run_id": "r"}]

    async def run(**_):
        data = ends.pop(0)
        return SimpleNamespace(
            is_completed=lambda: True, data=data, aresult=AsyncMock(return_value=data)
        )

    monkeypatch.setattr(sweep_flow, "experiment", run)
    member = SimpleNamespace(experiment=SimpleNamespace(flow_parameters=dict))
    assert asyncio.run(sweep_flow._run_inline(member)) == {"result": {"run_id": "r"}}
    assert ends == []
