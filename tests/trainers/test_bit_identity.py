"""However training is cut into stages, and in whichever process, the result is the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainers.tensordict.states.state import State

VARIANTS = {
    "clip": {},
    "kl_penalty": {"ppo__loss_type": "kl_penalty", "rl__clip_value": True},
    "debate with schedules": {
        "interaction_protocol": "debate",
        "debate_protocol__max_message_rounds": 4,
        "rl__steps_per_env_per_iteration": 2,
        "rl__use_shared_body": False,
        "rl__anneal_lr": True,
        "agents__prover0__update_schedule": {
            "kind": "alternating_periodic",
            "period": 1,
            "first_agent": "prover0",
        },
    },
    "noise": {"agents___default__noise_sigma": 0.1, "agents___default__transformer_dropout": 0.1},
}


def _plain(tiny, hyper_params):
    trainer = tiny.trainer(hyper_params)
    trainer.train()
    metrics = [record.values for record in trainer.history if record.stage == "train"]
    return trainer.state, metrics, trainer.test_results["test"]


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("name", VARIANTS)
def test_train_is_the_same_as_its_stages_with_the_state_saved_in_between(tiny, tmp_path, name):
    hyper_params = tiny.parameters(**VARIANTS[name])
    state, metrics, test = _plain(tiny, hyper_params)
    staged = tiny.trainer(hyper_params).initial_state()
    staged_metrics = []
    for iteration in range(3):
        staged.save(tmp_path / str(iteration))
        torch.manual_seed(iteration)  # nothing may depend on the global generator
        trainer = tiny.trainer(hyper_params)
        trainer.state = State.load(tmp_path / str(iteration))
        staged_metrics += trainer.run_iterations(iteration, iteration + 1)
        staged = trainer.state
    assert staged == state
    assert staged_metrics == metrics
    assert trainer.run_test() == test
    assert trainer.run_test() == test
    assert trainer.state == state


def test_any_cut_gives_the_same(tiny):
    hyper_params = tiny.parameters()
    state, metrics, _ = _plain(tiny, hyper_params)
    trainer = tiny.trainer(hyper_params)
    trainer.initial_state()
    assert trainer.run_iterations(0, 2) + trainer.run_iterations(2, 3) == metrics
    assert trainer.state == state
    trainer.initial_state()  # the same trainer, again from the initial state
    assert trainer.run_iterations(0, 3) == metrics
    assert trainer.state == state


def test_training_on_from_a_checkpoint_is_training_through(tiny, tmp_path):
    settings = {"run_id": "a-run", "home": str(tmp_path)}
    half = tiny.trainer(tiny.parameters(rl__num_iterations=1), **settings)
    half.train()
    whole = tiny.trainer(tiny.parameters(), **settings)
    whole.load_and_set_state_from_checkpoint()
    whole.train()
    assert whole.state == _plain(tiny, tiny.parameters())[0]


def test_raising_the_number_of_iterations_changes_nothing_before(tiny):
    state, metrics, _ = _plain(tiny, tiny.parameters(rl__num_iterations=2))
    longer = tiny.trainer(tiny.parameters(rl__num_iterations=3))
    longer.initial_state()
    assert longer.run_iterations(0, 2) == metrics
    assert longer.state == state


def test_a_test_in_between_changes_nothing(tiny):
    state, _, _ = _plain(tiny, tiny.parameters())
    trainer = tiny.trainer(tiny.parameters())
    trainer.initial_state()
    for iteration in range(3):
        trainer.run_iterations(iteration, iteration + 1)
        trainer.run_test()
        trainer.run_test("train")
    assert trainer.state == state


def test_pretraining_in_stages_is_pretraining_in_train(tiny, tmp_path):
    hyper_params = tiny.parameters(pretrain_agents=True)
    state, _, _ = _plain(tiny, hyper_params)
    first = tiny.trainer(hyper_params).initial_state()
    trainer = tiny.trainer(hyper_params)
    trainer.state = first
    for name in reversed(trainer.pretrained_agent_names(trainer.hyper_params)):
        other = tiny.trainer(hyper_params)
        other.state = first
        other.pretrain(name).save(tmp_path / name)
        trainer.load_pretrained(name, type(other.pretrain(name)).load(tmp_path / name))
        assert other.state == first
    trainer.run_iterations(0, 3)
    assert trainer.state == state


@pytest.mark.slow
def test_another_process_with_another_hash_seed_gives_the_same_bits(tiny, tmp_path):
    script = Path(__file__).with_name("tiny_experiment.py")
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "there")],
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": root},
    )
    here = _plain(tiny, tiny.parameters(pretrain_agents=True))[0]
    assert process.wait(timeout=300) == 0
    assert State.load(tmp_path / "there") == here


def test_another_seed_gives_another_result(tiny):
    one, other = (_plain(tiny, tiny.parameters(seed=seed))[0] for seed in (1, 2))
    assert one != other
