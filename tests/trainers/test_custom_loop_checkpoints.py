"""CheckpointFiles of trainers with a custom loop, in plain Python."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest
import torch

from ratchet import ExperimentSettings
from ratchet.errors import CheckPointNotFoundError, StateError
from trainers import TensorDictRlTrainer, TensorDictTrainer, Trainer, attach_progress_bar
from trainers.staged import runs_in_stages
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer


class InterruptionError(Exception):
    pass


class Loop(Trainer):
    """Takes Adam steps towards random numbers; raises an error at a given step."""

    interrupted_at = None
    counts = True

    @dataclass
    class State(Trainer.State):
        optimizer: dict = field(default_factory=dict)

    def train(self):
        torch.manual_seed(self.hyper_params.seed)
        self._run_train_loop()
        self.log_stats({"drawn": float(torch.rand(()))}, iteration=4, stage="after")

    @attach_progress_bar(lambda self: 4)
    def _run_train_loop(self, iteration_context):
        params = list(self.scenario_instance.combined_agents.parameters())
        optimizer = torch.optim.Adam(params, lr=0.01)
        if self.state.optimizer:
            optimizer.load_state_dict(self.state.optimizer)
        for iteration in range(self.state.iteration, 4):
            if iteration == self.interrupted_at:
                raise InterruptionError
            loss = sum((param - torch.randn_like(param)).square().mean() for param in params)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.log_stats({"loss": float(loss.detach())}, iteration=iteration, stage="train")
            if self.counts:
                self.state.iteration = iteration + 1
                self.state.optimizer = optimizer.state_dict()
            self.save_checkpoint(log=False)


class ContextLoop(Loop, TensorDictTrainer):
    """The same in the context of training, which seeds too, and without a declared loop."""

    def train(self):
        from contextlib import ExitStack

        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop(iteration_context=None)

    def _run_train_loop(self, iteration_context):
        Loop._run_train_loop.__wrapped__(self, iteration_context)


@pytest.fixture
def make(tiny, tmp_path):
    def make(kind, run_id="mine", **changes):
        settings = {"home": str(tmp_path), "run_id": run_id}
        hyper_params = tiny.parameters(**changes)
        instance = tiny.scenario(hyper_params, **settings)
        return kind(hyper_params, instance, ExperimentSettings(**settings))

    return make


def weights(trainer):
    return dict(trainer.scenario_instance.combined_agents.state_dict())


def interrupt(trainer, at):
    trainer.interrupted_at = at
    with pytest.raises(InterruptionError):
        trainer.train()


@pytest.mark.parametrize("kind", [Loop, ContextLoop])
def test_an_interrupted_loop_ends_as_an_undisturbed_one_bit_for_bit(make, kind):
    whole = make(kind, "whole")
    whole.train()
    interrupt(make(kind), 2)
    again = make(kind)
    again.prepare_training()
    assert again.state.iteration == 2
    again.train()
    assert again.history == whole.history
    assert again.state.iteration == whole.state.iteration == 4
    assert all(weights(again)[name].equal(value) for name, value in weights(whole).items())


def test_without_preparation_training_begins_anew(make):
    interrupt(make(Loop), 2)
    again = make(Loop)
    assert again.state == Loop.State()


def test_a_state_that_does_not_say_where_the_loop_is_is_not_continued_from(make, caplog):
    first = make(Loop)
    first.counts = False
    interrupt(first, 2)
    again = make(Loop)
    before = {name: value.clone() for name, value in weights(again).items()}
    with caplog.at_level(logging.WARNING):
        again.prepare_training()
    assert "training starts from scratch" in caplog.text
    assert all(value.equal(before[name]) for name, value in weights(again).items())


def test_a_checkpoint_outlives_a_kill_between_two_renames(make):
    first = make(Loop)
    interrupt(first, 2)
    base = first.checkpoint_base_dir
    base.rename(base.with_name(f".{base.name}-old"))
    again = make(Loop)
    again.prepare_training()
    assert again.state.iteration == 2


def test_a_state_of_another_form_is_refused(make):
    class Other(Loop):
        @dataclass
        class State(Trainer.State):
            best: float = 0.0

    interrupt(make(Loop), 2)
    with pytest.raises(StateError, match=r"got the fields .*optimizer.*expected \['best'"):
        make(Other).load_and_set_state_from_checkpoint()
    make(VanillaPpoTrainer, "ppo").train()
    with pytest.raises(CheckPointNotFoundError, match="another kind of trainer"):
        make(Loop, "ppo").load_and_set_state_from_checkpoint()


def test_what_cannot_be_saved_without_pickle_is_refused(make):
    trainer = make(Loop)
    trainer.state.optimizer = {"step": object()}
    with pytest.raises(StateError, match="cannot be saved without pickle"):
        trainer.save_checkpoint()


def test_another_runs_models_are_taken_up_with_its_state(make):
    first = make(Loop)
    interrupt(first, 3)
    other = make(Loop, "other", base_run__run_id="mine")
    other.load_and_set_state_from_checkpoint(from_base_run=True)
    assert other.state.iteration == 3
    assert other.history == [], "metrics are those of the other run"
    assert all(weights(other)[name].equal(value) for name, value in weights(first).items())


def test_a_test_run_saves_nothing(tiny, tmp_path):
    settings = {"home": str(tmp_path), "run_id": "mine", "test_run": True}
    hyper_params = tiny.parameters()
    instance = tiny.scenario(hyper_params, **settings)
    Loop(hyper_params, instance, ExperimentSettings(**settings)).train()
    assert not (tmp_path / "checkpoints").exists()


def test_a_custom_train_of_a_staged_trainer_keeps_the_agents_as_they_are(make, tmp_path):
    class CustomTrain(VanillaPpoTrainer):
        def train(self):
            with torch.no_grad():
                for param in self.combined_agents.parameters():
                    param.fill_(0.5)

    trainer = make(CustomTrain)
    assert issubclass(CustomTrain, TensorDictRlTrainer)
    assert not runs_in_stages(CustomTrain)
    trainer.train()
    trainer.checkpoint_files.write_states(tmp_path / "stage")
    state = CustomTrain.State.load(tmp_path / "stage" / "state")
    saved = state.agents["prover"]
    params = dict(trainer.combined_agents.parts["prover"].named_parameters())
    assert params
    assert all((saved[name] == 0.5).all() for name in params)
