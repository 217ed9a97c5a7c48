"""Trainers with a custom loop: their checkpoints are stored, cached and resumed from."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from flows import retest_experiment, run_experiment, verify_run
from ratchet import HyperParameters
from ratchet.experiment_files.base_run import find_saved_state, saved_states
from ratchet.parameters.settings import ExperimentSettings
from trainers.state import STATE_NAME
from trainers.state_tree import load_tree
from trainers.tensordict.states.state import State as AgentsState

AGENT = {"d_gnn": 4, "d_gin_mlp": 4, "d_transformer": 4, "d_transformer_mlp": 4, "num_heads": 2}
TRAINER = {"module_path": "loop_trainer.py", "class_name": "LoopTrainer"}


def parameters(lab, **changes):
    plain = {
        "trainer": TRAINER,
        "pretrain_agents": False,
        "d_representation": 4,
        "agents": {"_default": AGENT},
        "rl__num_iterations": 4,
        **changes,
    }
    return lab.hyper_params(**plain)


def run(lab, **changes):
    return run_experiment(
        HyperParameters.from_dict(parameters(lab, **changes)),
        ExperimentSettings.from_dict(lab.settings()),
        name="loop",
    )


@pytest.fixture(scope="module")
def lab(new_lab):
    return new_lab()


@pytest.fixture(scope="module")
def first(lab):
    return run(lab)


def stage_folder(lab, result):
    return lab.folder / "home" / "store" / "stages" / result.states["main"]


@pytest.mark.slow
def test_checkpoints_of_a_loop_are_in_the_store_and_in_the_run(lab, first):
    folder = stage_folder(lab, first)
    last = load_tree(folder / "state", STATE_NAME)
    assert last["iteration"] == 4
    assert last["optimizer"]["state"][0]["step"] == 4
    assert set(AgentsState.load(folder / "state").agents) == {"prover", "verifier"}
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["iteration"] == 4
    assert metadata["package_version"]
    assert len(metadata["git_sha"]) == 40
    assert not list(folder.rglob("*.pkl"))
    settings = ExperimentSettings.from_dict(lab.settings())
    states = saved_states(first.run_id, settings)
    assert [state.iteration for state in states] == [1, 2, 3, 4]
    assert AgentsState.load(find_saved_state(first.run_id, "2", settings).open()).iteration == 2
    assert list((lab.folder / "home" / "checkpoints").iterdir()) == [], (
        "no checkpoint is left outside the store"
    )
    manifest = json.loads((Path(first.folder) / "manifest.json").read_text())
    assert any(path.endswith("state/own.safetensors") for path in manifest["checkpoints"]["main"])


@pytest.mark.slow
def test_agents_of_a_loop_can_be_loaded_in_other_runs(lab, first):
    loaded = {"load_checkpoint_and_parameters": True, "checkpoint_run_id": first.run_id}
    changes = {"agents": {"_default": AGENT, "prover": loaded}, "rl__num_iterations": 0}
    second = run(lab, **changes, trainer="vanilla_ppo")
    saved = AgentsState.load(stage_folder(lab, first) / "state").agents["prover"]
    taken = AgentsState.load(stage_folder(lab, second) / "state").agents["prover"]
    assert all(taken[name].equal(saved[name]) for name in taken)
    third = run(lab, **changes)
    mine = AgentsState.load(stage_folder(lab, third) / "state").agents["prover"]
    assert all(mine[name].equal(saved[name]) for name in mine)
    assert load_tree(stage_folder(lab, third) / "state", STATE_NAME)["iteration"] == 0


@pytest.mark.slow
def test_each_saved_state_of_a_loop_is_retested(lab, first):
    again = retest_experiment(first.run_id, settings=ExperimentSettings.from_dict(lab.settings()))
    lines = lab.metrics(again.to_dict())
    entries = {line[2]: dict(line[3]) for line in lines if line[1] == "test"}
    assert sorted(entries) == [1, 2, 3, 4]
    assert entries[4]["total"] == first.metrics["main"]["test"]["total"]
    assert len({values["total"] for values in entries.values()}) == 4
    assert again.computed == 4, "the data are cached, and no training happens"


@pytest.mark.slow
def test_a_stored_loop_is_verified_bit_for_bit(lab, first):
    found = verify_run(first.run_id, ExperimentSettings.from_dict(lab.settings()))
    assert found.remade.record.stage == "run_trainer"
    assert found.is_sound, found.remade.differences
    assert list((lab.folder / "home" / "checkpoints").iterdir()) == []


@pytest.mark.in_turn(4, of="kills")
@pytest.mark.slow
def test_a_killed_loop_resumes_from_its_last_checkpoint_bit_for_bit(new_lab):
    lab, undisturbed = new_lab(), new_lab()
    whole = undisturbed.run(parameters(undisturbed))
    process, _ = lab.start(parameters(lab), environment={"TINY_SECONDS": "0.5"})
    while lab.done() != ["train 0", "train 1"]:
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    again = lab.run(parameters(lab))
    done = lab.done()
    assert done.count("train 0") == done.count("train 1") == 1
    assert done[-1] == "test"
    assert lab.weights(again) == undisturbed.weights(whole)
    assert lab.metrics(again) == undisturbed.metrics(whole)
