"""A sweep whose values reach no arm is refused; arms that set them themselves are named."""

from __future__ import annotations

import logging

import pytest

from flows.sweeps.members import resolve_sweep
from ratchet.errors import ParameterError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.sweeps import ZipSweep

PLAIN = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "generated"}
WIDTH = "agents._default.d_gnn"


def resolve(grid, arms=None, **changes):
    base = HyperParameters.from_dict({**PLAIN, **changes})
    return resolve_sweep(base, grid, None, arms, name="exp")


def test_a_default_that_all_agents_override_is_refused():
    agents = {"prover": {"d_gnn": 8}, "verifier": {"d_gnn": 4}}
    message = rf"{WIDTH}: got 2, 3, but no arm varies with it.* Vary agents\.NAME\.d_gnn instead"
    with pytest.raises(ParameterError, match=message):
        resolve({WIDTH: [2, 3], "seed": [0, 1]}, agents=agents)


def test_a_default_that_one_agent_uses_varies():
    assert len(resolve({WIDTH: [2, 3]}, agents={"prover": {"d_gnn": 8}}).members) == 2


def test_arms_that_set_a_varied_value_are_named(caplog):
    arms = {"slow": {"rl.lr": 0.1}, "other": {"rl.gamma": 0.5}}
    with caplog.at_level(logging.WARNING):
        resolve({"rl.lr": [0.2, 0.3], "seed": [0, 1]}, arms)
    (warning,) = caplog.messages
    assert warning.startswith("sweep: rl.lr does not vary in the arms slow, which set it")


@pytest.mark.parametrize(
    "grid",
    [
        {"seed": [0, 1]},
        {"rl.lr": [0.1]},
        ZipSweep(parameters={"rl.lr": [0.1, 0.2], "rl.gamma": [0.9, 0.8]}),
    ],
)
def test_other_sweeps_are_accepted(grid, caplog):
    assert resolve(grid).members
    assert caplog.messages == []
