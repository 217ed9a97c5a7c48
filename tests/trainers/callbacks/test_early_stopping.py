"""Early stopping ends as configured, and a stopped run skips its remaining iterations."""

from __future__ import annotations

import math

import pytest

from ratchet.errors import UnknownNameError

NAN = math.nan


def stopper(**parameters):
    return {"name": "early_stopping", "metric": "score", **parameters}


CASES = [
    # values, parameters, the iteration that is the last
    ([1, 2, 3, 4, 5], {"patience": 1}, 4),
    ([1, 1, 1, 1, 1], {"patience": 2}, 2),
    ([1, 3, 2, 3, 4], {"patience": 2}, 3),
    ([1, 2, 2.4, 2.6, 2.7, 9], {"patience": 2, "min_delta": 0.5}, 5),
    ([1, 2, 2.4, 2.5, 9], {"patience": 2, "min_delta": 0.5}, 3),
    ([5, 4, 6, 6, 1], {"patience": 2, "mode": "min"}, 3),
    ([NAN, NAN, NAN, 1], {"patience": 3}, 2),
    ([NAN, 1, NAN, 2, 0], {"patience": 2}, 4),
    ([1, None, None, 1, 1, 0], {"patience": 2}, 4),
    ([1, 2, 3, 1], {"stop_at": 3}, 2),
    ([4, 2.5, 3, 1], {"stop_at": 2, "mode": "min"}, 3),
]


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(("values", "parameters", "last"), CASES)
def test_the_iteration_that_is_the_last(tiny, scripted, values, parameters, last):
    trainer = tiny.trainer(scripted(values, stopper(**parameters)))
    trainer.initial_state()
    assert len(trainer.run_iterations(0, len(values))) == last + 1
    assert trainer.iteration == len(values)
    assert trainer.has_stopped == (last + 1 < len(values) or "stop_at" in parameters)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("cuts", [(0, 6), (0, 1, 2, 3, 4, 5, 6), (0, 3, 6), (0, 4, 6)])
def test_a_stopped_run_is_the_same_however_it_is_cut(tiny, scripted, run_in_pieces, cuts):
    hyper_params = scripted([1, 3, 2, 2, 9, 9], stopper(patience=2))
    whole = tiny.trainer(hyper_params)
    whole.train()
    trainer, metrics = run_in_pieces(hyper_params, *cuts)
    assert trainer.state == whole.state
    assert metrics == [record.values for record in whole.history if record.stage == "train"]
    assert len(metrics) == 4
    stopped = trainer.state.callbacks["stopped"]
    assert (stopped["iteration"], stopped["callback"]) == (3, "early_stopping")
    assert stopped["reason"] == "score has been no better than 3 for 2 iterations"
    assert trainer.run_test() == whole.test_results["test"]


def test_what_is_left_after_a_stop_changes_nothing_but_the_count(tiny, scripted):
    trainer = tiny.trainer(scripted([1, 1, 1, 1], stopper(patience=1)))
    trainer.initial_state()
    trainer.run_iterations(0, 2)
    before = trainer.state
    assert trainer.has_stopped
    assert trainer.run_iterations(2, 4) == []
    before.iteration = 4
    assert trainer.state == before
    more = tiny.trainer(scripted([1] * 9, stopper(patience=1)))  # more iterations later
    more.state = before
    assert more.run_iterations(4, 9) == []
    trainer.initial_state()  # and again from the initial state
    assert len(trainer.run_iterations(0, 4)) == 2


def test_left_out_the_run_goes_on(tiny, scripted):
    trainer = tiny.trainer(scripted([1, 1, 1, 1], stopper(patience=1)))
    trainer.initial_state()
    trainer.run_iterations(0, 3)
    fork = tiny.trainer(scripted([1, 1, 1, 1]))
    fork.state = trainer.state
    assert len(fork.run_iterations(3, 4)) == 1


def test_a_metric_that_is_not_there_is_named(tiny, scripted):
    trainer = tiny.trainer(scripted([1, 1], stopper(metric="scor")))
    trainer.initial_state()
    with pytest.raises(UnknownNameError, match=r"'scor'.*Did you mean 'score'"):
        trainer.run_iterations(0, 1)
