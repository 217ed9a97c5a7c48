"""Norms of gradients are those of the gradients, and training does not notice them being taken."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from trainers.callbacks.base import Moment
from trainers.callbacks.gradient_statistics import GradientStatistics

NOW = Moment(0, "train", {})


def test_norms_are_averaged_over_the_minibatches_with_a_gradient(tiny):
    trainer = tiny.trainer(tiny.parameters(callbacks=["gradient_statistics"]))
    statistics = trainer.callbacks._all["gradient_statistics"]
    assert isinstance(statistics, GradientStatistics)
    groups = {group.name: group for group in statistics._groups}
    statistics.begin_iteration(NOW)
    for scale in (3.0, 5.0):
        for name in ("prover.policy", "prover.value"):
            for param in groups[name].params:
                param.grad = torch.full_like(param, scale)
        statistics.after_loss(NOW, {})
    groups["verifier.value"].params[0].grad = torch.full_like(groups["verifier.value"].params[0], 2)
    statistics.after_loss(NOW, {})  # again 5 and 5 for the prover
    sizes = {n: sum(p.numel() for p in groups[n].params) for n in groups}
    found = statistics.end_iteration(NOW)
    mean = (3 + 5 + 5) / 3
    policy, value = sizes["prover.policy"], sizes["prover.value"]
    assert found == {
        "prover.policy.grad_norm": pytest.approx(mean * math.sqrt(policy)),
        "prover.value.grad_norm": pytest.approx(mean * math.sqrt(value)),
        "prover.grad_norm": pytest.approx(mean * math.sqrt(policy + value)),
        "verifier.value.grad_norm": pytest.approx(
            2 * math.sqrt(groups["verifier.value"].params[0].numel())
        ),
        "verifier.grad_norm": pytest.approx(
            2 * math.sqrt(groups["verifier.value"].params[0].numel())
        ),
    }
    statistics.begin_iteration(NOW)
    assert statistics.end_iteration(NOW) == {}


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ppo__loss_type": "kl_penalty"},
        {"trainer": "reinforce"},
        {"trainer": "spg", "interaction_protocol": "adp"},
        {"trainer": "solo_agent"},
    ],
    ids=["without autograd", "kl_penalty", "reinforce", "spg", "solo_agent"],
)
def test_training_is_the_same_bit_for_bit(tiny, changes):
    plain, watched = (
        tiny.trainer(tiny.parameters(callbacks=callbacks, **changes))
        for callbacks in ([], ["gradient_statistics"])
    )
    plain.train()
    watched.train()
    assert replace(watched.state, callbacks={}) == plain.state
    for one, other in zip(plain.history, watched.history, strict=True):
        assert {name: other.values[name] for name in one.values} == one.values
    norms = {n: v for n, v in watched.history[0].values.items() if n.endswith(".grad_norm")}
    assert {"prover.grad_norm", "verifier.grad_norm"} <= norms.keys()
    assert norms["verifier.grad_norm"] > 0


def test_norms_of_agents_add_up_to_the_norm_before_clipping(tiny):
    one_batch = {"rl__num_epochs": 1, "rl__minibatch_size": 32}
    trainer = tiny.trainer(tiny.parameters(callbacks=["gradient_statistics"], **one_batch))
    trainer.initial_state()
    (values,) = trainer.run_iterations(0, 1)
    both = math.hypot(values["prover.grad_norm"], values["verifier.grad_norm"])
    assert values["grad_norm"] == pytest.approx(both)


def test_frozen_agents_have_none(tiny):
    off = {"kind": "contiguous_periodic", "period": 2, "start": 1, "stop": 2}
    trainer = tiny.trainer(
        tiny.parameters(callbacks=["gradient_statistics"], agents__prover__update_schedule=off)
    )
    trainer.initial_state()
    first, second = trainer.run_iterations(0, 2)
    assert "prover.grad_norm" not in first
    assert second["prover.grad_norm"] > 0
