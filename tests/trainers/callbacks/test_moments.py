"""Every moment comes in its order, once, however training is cut; and callbacks leave no trace."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet.errors import ParameterError
from trainers import Callback, register_callback

RECORD = {"callbacks": ["test_recorder"]}


def train_metrics(trainer):
    return [record.values for record in trainer.history if record.stage == "train"]


def expected(num_losses, *, rollouts=True):
    moments = [("begin_run", "train", 0)]
    for iteration in range(3):
        names = ["begin_iteration", *["after_rollouts"] * rollouts]
        names += ["after_loss"] * num_losses + ["end_iteration"]
        moments += [(name, "train", iteration) for name in names]
    tested = [("begin_stage", "test", 3), ("end_stage", "test", 3)]
    return [*moments, ("end_run", "train", 2), *tested]


@pytest.mark.parametrize("name", ["vanilla_ppo", "reinforce"])
def test_moments_of_reinforcement_learning(tiny, moments, name):
    trainer = tiny.trainer(tiny.parameters(trainer=name, **RECORD))
    trainer.train()
    assert moments == expected(num_losses=2 * 3)  # 2 epochs of 32 frames in minibatches of 12
    assert all(values["num_frames"] == 32 for values in train_metrics(trainer))
    assert trainer.test_results["test"].metrics["num_tested"] > 3


def test_moments_of_learning_alone(tiny, moments):
    parameters = {"trainer": "solo_agent", "solo_agent__num_epochs": 3}
    tiny.trainer(tiny.parameters(**parameters, **RECORD)).train()
    assert moments == expected(num_losses=3, rollouts=False)  # 20 datapoints, 8 a minibatch


@pytest.mark.parametrize("cuts", [(0, 3), (0, 1, 3), (0, 1, 2, 3)])
def test_cuts_change_no_moment(tiny, moments, run_in_pieces, cuts):
    hyper_params = tiny.parameters(**RECORD)
    trainer, metrics = run_in_pieces(hyper_params, *cuts)
    trainer.run_test()
    assert moments == expected(num_losses=6)
    moments.clear()
    whole = tiny.trainer(hyper_params)
    whole.train()
    assert trainer.state == whole.state
    assert metrics == train_metrics(whole)


@register_callback("test_drawer")
class Drawer(Callback):
    """Draws from all global generators wherever it can."""

    def after_rollouts(self, now, rollouts):
        second = float(np.random.rand())  # noqa: NPY002 -- the global generator
        return {"first": float(torch.rand(())), "second": second}

    def after_loss(self, now, losses):
        torch.rand(3)

    def end_iteration(self, now):
        return {"third": float(torch.rand(()))}


def test_what_a_callback_draws_changes_no_training_and_depends_on_no_cut(tiny, run_in_pieces):
    noise = {"agents___default__noise_sigma": 0.1, "agents___default__transformer_dropout": 0.1}
    plain = tiny.trainer(tiny.parameters(**noise))
    plain.train()
    hyper_params = tiny.parameters(callbacks=["test_drawer"], **noise)
    whole = tiny.trainer(hyper_params)
    whole.train()
    assert replace(whole.state, callbacks={}) == plain.state
    assert run_in_pieces(hyper_params, 0, 2, 3)[1] == train_metrics(whole)
    drawn = [values["third"] for values in train_metrics(whole)]
    assert len(set(drawn)) == 3


@register_callback("test_doubler")
class Doubler(Callback):
    def end_iteration(self, now):
        return {next(iter(now.metrics)): 0.0}


@register_callback("test_meddler")
class Meddler(Callback):
    def end_iteration(self, now):
        self.stop("without saying that it may")


def test_metrics_are_not_overwritten_and_who_only_looks_on_stops_nothing(tiny):
    with pytest.raises(ParameterError, match=r"callbacks\.0.*already records"):
        tiny.trainer(tiny.parameters(callbacks=["test_doubler"])).train()
    with pytest.raises(ParameterError, match=r"Meddler.*`steers = False`"):
        tiny.trainer(tiny.parameters(callbacks=["test_meddler"])).train()


def test_a_callback_added_later_begins_where_it_is_added(tiny, moments):
    trainer = tiny.trainer(tiny.parameters())
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    later = tiny.trainer(tiny.parameters(**RECORD))
    later.state = trainer.state
    later.run_iterations(1, 3)
    assert moments[:2] == [("begin_run", "train", 1), ("begin_iteration", "train", 1)]
    assert moments[-1] == ("end_run", "train", 2)


@register_callback("test_scribe")
class Scribe(Callback):
    def end_iteration(self, now):
        file = Path(tempfile.mkdtemp()) / f"iteration_{now.iteration}.txt"
        file.write_text(str(len(now.metrics)))
        self.add_artifact(file, "notes")


def test_files_of_a_callback_are_kept_with_a_run_that_has_an_id(tiny, tmp_path):
    hyper_params = tiny.parameters(callbacks=["test_scribe"], rl__num_iterations=2)
    tiny.trainer(hyper_params, runs=str(tmp_path / "none")).train()
    assert not (tmp_path / "none").exists()
    trainer = tiny.trainer(hyper_params, runs=str(tmp_path), run_id="mine")
    trainer.initial_state()
    trainer.run_iterations(0, 2)
    kept = tmp_path / "mine" / "artifacts" / "callback" / "notes"
    assert sorted(path.name for path in kept.iterdir()) == ["iteration_0.txt", "iteration_1.txt"]
