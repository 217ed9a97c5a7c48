"""Training finds the game's known answers, and the attack on a frozen verifier what it must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratchet.statistics import accuracy
from tests.scenarios.binary_erasure_channel import analytic_solution

NEVER = {"kind": "contiguous_periodic", "period": 1000, "start": 999, "stop": 1000}
SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2)))


def train_against(trainer, verifier_of):
    """Train again, with the final verifier of a different trainer."""
    state = trainer.initial_state()
    agents = {**state.agents, "verifier": verifier_of.agents["verifier"]}
    trainer.state = replace(state, agents=agents, normalization=verifier_of.normalization)
    trainer.train()
    assert all(
        tensor.equal(trainer.state.agents["verifier"][name])
        for name, tensor in verifier_of.agents["verifier"].items()
    )


def result_of(trainer):
    result = trainer.test_results["test"]
    assert result.metrics["num_datapoints"] == 400
    return accuracy(result.table)


def contains(interval, value):
    return interval.low <= value <= interval.high


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_verifier_gains_from_a_prover_it_cannot_trust_and_keeps_that_under_attack(
    erasure_trainer, seed
):
    game = erasure_trainer(seed=seed)
    game.train()
    alone = erasure_trainer(seed=seed, interaction_protocol="solo_verifier")
    alone.train()
    attack = erasure_trainer(seed=seed, agents__verifier__update_schedule=NEVER)
    train_against(attack, game.state)
    section = game.hyper_params.binary_erasure_channel
    with_prover, without = result_of(game), result_of(alone)
    assert without.high < with_prover.low
    assert contains(with_prover, analytic_solution.accuracy_with_prover(section))
    assert contains(without, analytic_solution.accuracy_alone(section))
    assert contains(result_of(attack), analytic_solution.accuracy_with_prover(section))


@pytest.mark.slow
def test_a_verifier_that_learned_with_a_friend_loses_by_an_attack(erasure_trainer):
    together = erasure_trainer(seed=1, protocol_common__shared_reward=True)
    together.train()
    attack = erasure_trainer(seed=1, agents__verifier__update_schedule=NEVER)
    train_against(attack, together.state)
    section = together.hyper_params.binary_erasure_channel
    assert contains(result_of(together), analytic_solution.accuracy_together(section))
    assert result_of(attack).high < result_of(together).low
    assert result_of(attack).value <= analytic_solution.accuracy_with_prover(section)
