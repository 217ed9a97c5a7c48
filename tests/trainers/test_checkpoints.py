"""Checkpoints that a trainer saves automatically, their versions, and base runs."""

from __future__ import annotations

import json

import pytest

from ratchet import HyperParameters
from ratchet.errors import CheckPointNotFoundError, ParameterError
from trainers.tensordict.states.state import State


@pytest.fixture
def run(tiny, tmp_path):
    """A trainer that has trained three iterations and kept each."""
    trainer = tiny.trainer(
        tiny.parameters(), home=str(tmp_path), run_id="mine", checkpoint_period=1
    )
    trainer.train()
    return trainer


def test_a_checkpoint_lies_where_the_paths_say(run, tmp_path):
    base = type(run).get_checkpoint_base_dir_from_run_id("mine", str(tmp_path))
    assert run.checkpoint_base_dir == base == tmp_path / "checkpoints" / "mine"
    assert State.load(run.checkpoint_state_path) == run.state
    saved = json.loads(run.checkpoint_params_path.read_text())
    assert saved["parameters_version"] >= 1
    assert HyperParameters.from_dict(saved) == run.hyper_params
    metadata = json.loads(run.checkpoint_metadata_path.read_text())
    assert metadata == run._get_metadata()
    assert (metadata["trainer"], metadata["iteration"]) == ("vanilla_ppo", 3)
    assert metadata["package_version"]
    assert len(metadata["git_sha"]) == 40
    folders = {path.name for path in base.parent.iterdir()}
    assert folders == {"mine", "mine@1", "mine@2", "mine@3"}, "no other files remain"


def test_a_checkpoint_that_is_not_logged_is_no_version(tiny, tmp_path):
    trainer = tiny.trainer(tiny.parameters(), home=str(tmp_path), run_id="mine")
    trainer.initial_state()
    trainer.save_checkpoint(log=False)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["mine"]


def test_the_latest_checkpoint_of_this_run_is_taken_up(run, tiny, tmp_path):
    other = tiny.trainer(tiny.parameters(), home=str(tmp_path), run_id="mine")
    content = other._load_state_dict_from_active_run_checkpoint()
    assert State.from_dict(content) == run.state
    other.load_and_set_state_from_checkpoint()
    assert other.state == run.state
    with pytest.raises(ParameterError, match="got version='1', expected 'latest' unless from_base"):
        other.load_and_set_state_from_checkpoint(version="1")


@pytest.mark.parametrize(("version", "iteration"), [("latest", 3), ("2", 2)])
def test_a_base_runs_state_is_taken_up_by_version(run, tiny, tmp_path, version, iteration):
    hyper_params = tiny.parameters(base_run__run_id="mine")
    other = tiny.trainer(hyper_params, home=str(tmp_path), run_id="other")
    content = other._load_state_dict_from_base_run_checkpoint(version)
    assert content["iteration"] == iteration
    other.load_and_set_state_from_checkpoint(from_base_run=True, version=version)
    assert other.iteration == iteration
    other.train()
    assert other.state == run.state, "a run resumed from a checkpoint ends the same"


def test_what_is_missing_is_said(tiny, tmp_path):
    nobody = tiny.trainer(tiny.parameters(), home=str(tmp_path), run_id="other")
    with pytest.raises(CheckPointNotFoundError, match="no saved state in"):
        nobody.load_and_set_state_from_checkpoint()
    with pytest.raises(CheckPointNotFoundError, match=r"base_run\.run_id: got None"):
        nobody.load_and_set_state_from_checkpoint(from_base_run=True)
    lost = tiny.trainer(tiny.parameters(base_run__run_id="lost"), home=str(tmp_path))
    with pytest.raises(
        CheckPointNotFoundError, match=r"run lost in .* has no saved state 'latest'"
    ):
        lost.load_and_set_state_from_checkpoint(from_base_run=True)
    with pytest.raises(ParameterError, match=r"settings\.run_id: got None"):
        lost.save_checkpoint()


def test_all_iterations_are_counted(tiny):
    hyper_params = tiny.parameters(rl__num_iterations=7, rl__num_test_iterations=5)
    assert tiny.trainer(hyper_params).get_total_num_iterations() == 12


def test_a_state_with_random_agents_loads_equal(tiny, tmp_path):
    hyper_params = tiny.parameters(agents__prover__is_random=True)
    trainer = tiny.trainer(hyper_params)
    trainer.initial_state().save(tmp_path)
    trainer.run_iterations(0, 1)
    trainer.state.save(tmp_path)
    other = tiny.trainer(hyper_params)
    other.state = State.load(tmp_path)
    assert other.state == trainer.state


def test_files_of_a_trainer_are_kept_with_the_run(tiny, tmp_path):
    trainer = tiny.trainer(tiny.parameters(), runs=str(tmp_path / "runs"), run_id="mine")
    file = tmp_path / "notes.txt"
    for text in ("one", "two"):
        file.write_text(text)
        kept = trainer._add_file_to_artifact("notes", "text", file)
    assert kept == tmp_path / "runs" / "mine" / "artifacts" / "text" / "notes" / "notes.txt"
    assert kept.read_text() == "two"
    assert [path.name for path in kept.parent.parent.iterdir()] == ["notes"], "nothing left over"
    assert trainer._add_file_to_wandb_artifact("notes", "text", file) == kept
    with pytest.raises(ParameterError, match=r"artifact name: got '\.\./x'"):
        trainer._add_file_to_artifact("../x", "text", file)
    with pytest.raises(ParameterError, match="expected an existing file"):
        trainer._add_file_to_artifact("x", "text", tmp_path / "none")


def test_the_public_methods_of_a_trainer_are_there(tiny):
    trainer = tiny.trainer(tiny.parameters())
    for name in (
        *("_add_normalization_transforms", "_build_test_context", "_build_train_context"),
        *("_get_data_collectors", "_get_log_stats", "_get_loss_module_and_gae", "_get_metadata"),
        *("_get_optimizer_and_param_freezer", "_get_replay_buffer", "_pretrain_agents"),
        *("_run_test_loop", "_run_train_loop", "_train_on_replay_buffer", "train"),
    ):
        assert callable(getattr(trainer, name)), name
    assert trainer.trainer_type == "rl"
    assert trainer.num_agents == len(trainer.agent_names) == 2
    assert trainer.max_message_rounds == 4
    assert trainer.protocol_handler is trainer.scenario_instance.protocol_handler
    assert trainer.policy_operator.combined_agents is trainer.combined_agents
    assert trainer.value_operator.combined_agents is trainer.combined_agents
    assert set(trainer.PRETRAINED_MODEL_CACHE_PARAM_KEYS) == {"seed", "rl", "solo_agent"}
