"""Agents trained alone: the loss falls, stages are exact, and tables are complete."""

from __future__ import annotations

import math

import pytest

from ratchet.errors import ParameterError
from trainers.tensordict.states.state import State

SOLO = {"trainer": "solo_agent", "solo_agent__num_epochs": 3}


def test_train_is_the_same_as_its_epochs_with_the_state_saved_in_between(tiny, tmp_path):
    hyper_params = tiny.parameters(**SOLO)
    whole = tiny.trainer(hyper_params)
    whole.train()
    state, metrics = tiny.trainer(hyper_params).initial_state(), []
    for epoch in range(3):
        state.save(tmp_path / str(epoch))
        trainer = tiny.trainer(hyper_params)
        trainer.state = State.load(tmp_path / str(epoch))
        metrics += trainer.run_iterations(epoch, epoch + 1)
        state = trainer.state
    assert state == whole.state
    assert metrics == [r.values for r in whole.history if r.stage == "train"]
    assert trainer.run_test() == whole.test_results["test"]


def test_agents_learn_and_the_first_loss_is_that_of_guessing(tiny):
    trainer = tiny.trainer(
        tiny.parameters(
            trainer="solo_agent", solo_agent__num_epochs=40, solo_agent__learning_rate=0.01
        )
    )
    trainer.train()
    curve = [record.values for record in trainer.history if record.stage == "train"]
    for agent in trainer.agent_names:
        assert curve[0][f"{agent}.train_loss"] == pytest.approx(math.log(2), abs=0.5)
        assert curve[-1][f"{agent}.train_loss"] < 0.8 * curve[0][f"{agent}.train_loss"]
        assert curve[-1][f"{agent}.train_accuracy"] > 0.6


def test_one_agents_parameters_change_nothing_for_another(tiny):
    results = []
    for width in (4, 8):
        trainer = tiny.trainer(tiny.parameters(**SOLO, agents__prover__d_gnn=width))
        trainer.train()
        results.append(State(agents={"verifier": trainer.state.agents["verifier"]}))
    assert results[0] == results[1]


def test_random_agents_are_left_out(tiny):
    trainer = tiny.trainer(tiny.parameters(**SOLO, agents__prover__is_random=True))
    trainer.train()
    assert trainer.solo_agents == ["verifier"]
    assert "decision.prover" not in trainer.run_test().table


def test_the_table_has_a_row_for_every_datapoint(tiny):
    trainer = tiny.trainer(tiny.parameters(**SOLO))
    trainer.train()
    result = trainer.run_test("train")
    table = result.table
    assert table["datapoint_id"] == list(range(20))
    assert table["decision"] == table["decision.verifier"]
    right = [d == y for d, y in zip(table["decision"], table["y"], strict=True)]
    assert table["correct"] == right
    assert result.metrics["accuracy"] == sum(right) / 20
    for probability, decision in zip(
        table["probability.prover"], table["decision.prover"], strict=True
    ):
        assert (probability > 0.5) == (decision == 1)


def test_an_experiment_of_random_agents_alone_is_refused(tiny):
    trainer = tiny.trainer(tiny.parameters(**SOLO, agents___default__is_random=True))
    with pytest.raises(ParameterError, match="has a solo head"):
        trainer.train()
