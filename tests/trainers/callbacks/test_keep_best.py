"""The final state has the weights that had the best value."""

from __future__ import annotations

import pytest

from ratchet.errors import ParameterError
from trainers.tensordict.states.state import State


def keeper(**parameters):
    return {"name": "keep_best", "metric": "score", **parameters}


def agents_after(tiny, hyper_params, iterations):
    trainer = tiny.trainer(hyper_params)
    trainer.initial_state()
    trainer.run_iterations(0, iterations)
    return State(agents=trainer.state.agents)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("values", "mode", "best"),
    [([1, 3, 2, 3], "max", 1), ([2, 1, 3, 0], "min", 3), ([float("nan"), 5, 6, 1], "max", 2)],
)
@pytest.mark.parametrize("cuts", [(0, 4), (0, 1, 2, 3, 4)])
def test_weights_are_those_that_played_the_best_iteration(
    tiny, scripted, run_in_pieces, values, mode, best, cuts
):
    trainer, _ = run_in_pieces(scripted(values, keeper(mode=mode)), *cuts)
    wanted = agents_after(tiny, scripted(values), best)
    assert State(agents=trainer.state.agents) == wanted
    whole = tiny.trainer(scripted(values, keeper(mode=mode)))
    whole.train()
    assert whole.state == trainer.state
    assert whole.test_results["test"] == trainer.run_test()


def test_until_the_end_training_goes_on_from_the_last_weights(tiny, scripted):
    values = [3, 2, 1, 0]
    trainer = tiny.trainer(scripted(values, keeper()))
    trainer.initial_state()
    trainer.run_iterations(0, 3)
    last = agents_after(tiny, scripted(values), 3)
    assert State(agents=trainer.state.agents) == last
    trainer.run_iterations(3, 4)
    assert State(agents=trainer.state.agents) == agents_after(tiny, scripted(values), 0)


def test_a_run_that_is_stopped_ends_with_the_best_weights(tiny, scripted, run_in_pieces):
    values = [1, 3, 2, 2, 9, 9]
    stop = {"name": "early_stopping", "metric": "score", "patience": 2}
    hyper_params = scripted(values, stop, keeper())
    for cuts in ((0, 6), (0, 3, 4, 5, 6)):
        trainer, metrics = run_in_pieces(hyper_params, *cuts)
        assert len(metrics) == 4
        assert State(agents=trainer.state.agents) == agents_after(tiny, scripted(values), 1)


def test_a_test_after_each_iteration_chooses_among_the_weights_after_it(tiny, run_in_pieces):
    metric = "prover.mean_episode_reward"
    plain = tiny.trainer(tiny.parameters(rl__num_iterations=4, rl__lr=0.05))
    plain.initial_state()
    agents, tested, unwatched = [], [], []
    for iteration in range(4):
        unwatched += plain.run_iterations(iteration, iteration + 1)
        agents.append(plain.state.agents)
        tested.append(plain.run_test("test").metrics[metric])
    keep = {"name": "keep_best", "metric": metric, "dataset": "test"}
    hyper_params = tiny.parameters(rl__num_iterations=4, rl__lr=0.05, callbacks=[keep])
    trainer, metrics = run_in_pieces(hyper_params, 0, 2, 4)
    assert [values.pop(f"test.{metric}") for values in metrics] == tested
    assert metrics == unwatched  # tests do not affect training
    best = tested.index(max(tested))
    assert State(agents=trainer.state.agents) == State(agents=agents[best])


def test_learners_alone_are_kept_too(tiny):
    keep = {"name": "keep_best", "metric": "verifier.accuracy", "dataset": "test"}
    solo = {"trainer": "solo_agent", "solo_agent__num_epochs": 3}
    trainer = tiny.trainer(tiny.parameters(callbacks=[keep], **solo))
    trainer.train()
    values = [r.values["test.verifier.accuracy"] for r in trainer.history if r.stage == "train"]
    assert trainer.test_results["test"].metrics["verifier.accuracy"] == max(values)


def test_a_metric_that_the_test_has_not_is_named(tiny):
    keep = {"name": "keep_best", "metric": "acuracy", "dataset": "test"}
    with pytest.raises(ParameterError, match=r"no metric 'acuracy'"):
        tiny.trainer(tiny.parameters(callbacks=[keep])).train()
