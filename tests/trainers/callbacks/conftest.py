"""Callbacks that only tests have: one that notes its moments, and one that follows a script."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ratchet.parameters import SubParameters
from trainers import Callback, CallbackState, register_callback

MOMENTS: list[tuple[str, str, int]] = []


@register_callback("test_recorder")
class Recorder(Callback):
    stages = ("test",)

    def begin_run(self, now):
        MOMENTS.append(("begin_run", now.stage, now.iteration))

    def begin_iteration(self, now):
        MOMENTS.append(("begin_iteration", now.stage, now.iteration))

    def after_rollouts(self, now, rollouts):
        MOMENTS.append(("after_rollouts", now.stage, now.iteration))
        return {"num_frames": float(rollouts.batch_size.numel())}

    def after_loss(self, now, losses):
        MOMENTS.append(("after_loss", now.stage, now.iteration))

    def end_iteration(self, now):
        MOMENTS.append(("end_iteration", now.stage, now.iteration))
        return {"num_metrics": float(len(now.metrics))}

    def end_run(self, now):
        MOMENTS.append(("end_run", now.stage, now.iteration))

    def begin_stage(self, now):
        MOMENTS.append(("begin_stage", now.stage, now.iteration))

    def end_stage(self, now):
        MOMENTS.append(("end_stage", now.stage, now.iteration))
        return {"num_tested": float(len(now.metrics))}


class ScriptParameters(SubParameters):
    values: tuple[str, ...]  # numbers as text: JSON has no NaN


@register_callback("test_script")
class Script(Callback):
    """Adds the metric ``score`` with the given value of each iteration."""

    Parameters = ScriptParameters
    count = 0

    def after_rollouts(self, now, rollouts):
        value = self.parameters.values[self.count]
        self.count += 1
        return None if value == "None" else {"score": float(value)}

    def take_state(self):
        return CallbackState({"count": self.count})

    def load_state(self, state):
        self.count = state.values["count"]


@pytest.fixture
def moments():
    MOMENTS.clear()
    return MOMENTS


@pytest.fixture
def scripted(tiny):
    """Make a trainer's parameters whose metric ``score`` is given, with a callback after it."""

    def make(values, *callbacks, **changes):
        script = {"name": "test_script", "values": [str(value) for value in values]}
        return tiny.parameters(
            rl__num_iterations=len(values), callbacks=[script, *callbacks], **changes
        )

    return make


@pytest.fixture
def run_in_pieces(tiny, tmp_path):
    """Return a function that trains in separate parts, each with a new trainer."""
    from trainers.tensordict.states.state import State

    def run(hyper_params, *cuts):
        tiny.trainer(hyper_params).initial_state().save(tmp_path / "0")
        metrics = []
        for start, stop in pairwise(cuts):
            trainer = tiny.trainer(hyper_params)
            trainer.state = State.load(tmp_path / str(start))
            metrics += trainer.run_iterations(start, stop)
            trainer.state.save(tmp_path / str(stop))
        return trainer, metrics

    return run
