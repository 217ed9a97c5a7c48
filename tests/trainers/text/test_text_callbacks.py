"""Callbacks of chat models: the same moments, nothing paid after a stop, the best models kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ratchet.parameters import SubParameters
from trainers import Callback, CallbackState, register_callback
from trainers.text.state import State

MOMENTS: list[tuple[str, str, int]] = []
ALL_STAGES = (
    "sample_rollouts",
    "test_during_training",
    "create_fine_tune_jobs",
    "await_fine_tune_jobs",
    "test",
)


def note(moment):
    def write(self, now, *args):
        MOMENTS.append((moment, now.stage, now.iteration))

    return write


@register_callback("test_text_recorder")
class Recorder(Callback):
    stages = ALL_STAGES
    begin_run, end_run = note("begin_run"), note("end_run")
    begin_iteration, end_iteration = note("begin_iteration"), note("end_iteration")
    after_rollouts, begin_stage = note("after_rollouts"), note("begin_stage")

    def end_stage(self, now):
        MOMENTS.append(("end_stage", now.stage, now.iteration))
        return {"seen": float(len(now.metrics))}


class ScoreParameters(SubParameters):
    values: tuple[float, ...]


@register_callback("test_text_score")
class Score(Callback):
    """Adds the metric ``score`` with the given value of each iteration."""

    Parameters = ScoreParameters
    count = 0

    def after_rollouts(self, now, rollouts):
        self.count += 1
        return {"score": self.parameters.values[self.count - 1]}

    def take_state(self):
        return CallbackState({"count": self.count})

    def load_state(self, state):
        self.count = state.values["count"]


@pytest.fixture
def moments():
    MOMENTS.clear()
    return MOMENTS


def scripted(tiny_text, values, *callbacks, **changes):
    score = {"name": "test_text_score", "values": values}
    return tiny_text.parameters(
        rl__num_iterations=len(values), callbacks=[score, *callbacks], **changes
    )


def stop(**parameters):
    return {"name": "early_stopping", "metric": "score", **parameters}


KEEP = {"name": "keep_best", "metric": "score"}


def run_in_stages(tiny_text, hyper_params, tmp_path):
    """Run every stage with a separate trainer, as the tasks do; count the services' calls."""
    folder, metrics, jobs = tmp_path / "state", [], 0
    count = hyper_params.rl.num_iterations
    tiny_text.trainer(hyper_params).initial_state().save(folder)

    def fresh():
        made = tiny_text.trainer(hyper_params)
        made.state = State.load(folder)
        return made

    for iteration in range(count):
        rollouts = None
        if not fresh().has_stopped:
            rollouts, _ = fresh().sample_rollouts(iteration, tmp_path / f"{iteration}.jsonl")
            trainer = fresh()
            metrics.append(trainer.compute_stats(iteration, rollouts))
            trainer.state.save(folder)
        if iteration < count - 1:
            jobs += not fresh().has_stopped
            fresh().create_fine_tune_jobs(iteration, rollouts).save(folder)
            fresh().await_fine_tune_jobs(iteration).save(folder)
    return fresh(), metrics, jobs


def train_metrics(trainer):
    return [record.values for record in trainer.history if record.stage == "train"]


def models(trainer):
    return {name: group.model_names for name, group in trainer.state.shared_model_groups.items()}


def test_every_moment_comes_once_and_in_order(tiny_text, moments):
    hyper_params = tiny_text.parameters(
        callbacks=["test_text_recorder"], rl__num_iterations=2, text_rl__test_scheme="last"
    )
    trainer = tiny_text.trainer(hyper_params)
    trainer.train()

    def stage(name, iteration):
        return [("begin_stage", name, iteration), ("end_stage", name, iteration)]

    def iteration(i):
        names = ("begin_iteration", "after_rollouts", "end_iteration")
        return [(name, "train", i) for name in names]

    assert moments == [
        *stage("sample_rollouts", 0),
        ("begin_run", "train", 0),
        *iteration(0),
        *stage("create_fine_tune_jobs", 0),
        *stage("await_fine_tune_jobs", 0),
        *stage("sample_rollouts", 1),
        *iteration(1),
        ("end_run", "train", 1),
        *stage("test_during_training", 1),
    ]
    seen = {(r.stage, r.iteration): r.values["seen"] for r in trainer.history if r.stage != "train"}
    assert set(seen) == {
        *{(name, 0) for name in ALL_STAGES if "test" not in name},
        *{("sample_rollouts", 1), ("test_during_training", 1), ("test", 1)},
    }
    assert seen["test", 1] == seen["test_during_training", 1] > 3


@pytest.mark.parametrize(
    ("values", "callbacks", "done"),
    [
        ([1, 3, 2, 2], [stop(patience=9)], 4),
        ([1, 3, 2, 2, 9, 9], [stop(patience=2)], 4),
        ([1, 3, 2, 2, 9, 9], [stop(patience=2), KEEP], 4),
        ([1, 3, 2, 0], [KEEP], 4),
        ([1, 1], [stop(patience=1)], 2),
    ],
)
def test_stages_with_a_trainer_each_do_what_train_does(
    tiny_text, tmp_path, values, callbacks, done
):
    hyper_params = scripted(tiny_text, values, *callbacks)
    whole = tiny_text.trainer(hyper_params)
    whole.train()
    trainer, metrics, jobs = run_in_stages(tiny_text, hyper_params, tmp_path)
    assert len(metrics) == done
    np.testing.assert_equal(metrics, train_metrics(whole))
    stopped = done < len(values)
    assert jobs == done - 1 == sum(r.stage == "create_fine_tune_jobs" for r in whole.history)
    assert trainer.has_stopped == (stopped or ("patience" in str(callbacks) and len(values) == 2))
    mine, theirs = (replace(t.state, train_loop_stage="done") for t in (trainer, whole))
    assert mine == theirs
    assert mine.iteration == len(values) - 1


def test_the_best_models_are_tested_and_until_then_training_goes_on(tiny_text):
    plain = tiny_text.trainer(scripted(tiny_text, [1, 3, 2, 0]))
    plain.train()
    kept = tiny_text.trainer(scripted(tiny_text, [1, 3, 2, 0], KEEP, text_rl__test_scheme="all"))
    kept.train()
    (name,) = {n for n, group in models(kept).items() if n == "verifier"}
    assert models(kept)[name] == models(plain)[name][:2]  # those that played iteration 1
    assert len(models(plain)[name]) == 4
    tested = {r.iteration for r in kept.history if r.stage == "test_during_training"}
    assert tested == {0, 1, 2, 3}
    assert [r.stage for r in kept.history][-1] == "test"


def test_a_stopped_run_that_breaks_off_goes_on_to_the_same_end(tiny_text, tmp_path):
    hyper_params = scripted(tiny_text, [1, 1, 1, 1, 1], stop(patience=2), KEEP)
    whole = tiny_text.trainer(hyper_params, home=str(tmp_path / "whole"), run_id="r")
    whole.train()
    assert whole.has_stopped
    for cut in range(1, 9):
        home = {"home": str(tmp_path / str(cut)), "run_id": "r"}
        broken = tiny_text.trainer(hyper_params, **home)
        saves = 0

        class PowerCutError(BaseException):
            pass

        def save(original=broken.save_checkpoint, limit=cut, **options):
            nonlocal saves
            saves += 1
            original(**options)
            if saves == limit:
                raise PowerCutError

        broken.save_checkpoint = save
        with pytest.raises(PowerCutError):
            broken.train()
        again = tiny_text.trainer(hyper_params, **home)
        again.train()
        assert again.state == whole.state
        np.testing.assert_equal(
            [vars(record) for record in again.history], [vars(record) for record in whole.history]
        )
