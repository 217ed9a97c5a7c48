"""Every value that differs from its first default identifies an experiment, and no other."""

from __future__ import annotations

import pytest

from ratchet.parameters import identity
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.identity import DefaultChange, identifying_values, parameters_digest

BASE = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "er1000"}
CHANGES = [
    {"seed": 1},
    {"rl.num_iterations": 7},
    {"rl.body_lr_factor.actor": 0.5},
    {"ppo.clip_epsilon": 0.1},
    {"interaction_protocol": "adp"},
    {"callbacks": [{"name": "early_stopping"}]},
    {"callbacks": [{"name": "early_stopping", "patience": 3}]},
    {"agents.prover.d_gnn": 32},
    {"agents._default.d_gnn": 32},
    {"agents": {"_default": {"d_gnn": 32}, "prover": {"d_gnn": 16}}},
    {"agents._default.update_schedule": {"kind": "alternating_periodic", "period": 2,
                                         "first_agent": "prover"}},
    {"agents._default.update_schedule": {"kind": "contiguous_periodic", "period": 2, "start": 0,
                                         "stop": 1}},
    {"phases": [{"name": "a", "num_iterations": 2}]},
    {"phases": [{"name": "a", "num_iterations": 2, "partners": {"prover": "random"}}]},
    {"phases": [{"name": "a", "num_iterations": 2, "partners": {"prover": "frozen"}}]},
]  # fmt: skip


def _changed(changes) -> HyperParameters:
    base = HyperParameters.from_dict(BASE)
    return (
        HyperParameters.from_dict(BASE | changes) if "agents" in changes else base.replace(changes)
    )


def test_different_parameters_differ_and_equal_ones_are_equal():
    digests = [parameters_digest({"main": _changed(each)}) for each in ({}, *CHANGES)]
    assert len({*digests}) == len(digests)
    again = [
        parameters_digest({"main": HyperParameters.from_dict(_changed(each).to_dict())})
        for each in ({}, *CHANGES)
    ]
    assert again == digests
    assert parameters_digest({"main": _changed({})}, ("parent",)) not in digests


def test_defaults_are_left_out():
    assert identifying_values(HyperParameters.from_dict(BASE)) == BASE
    named = BASE | {"agents": {"prover": {}}, "rl": {"gamma": 0.9}, "phases": []}
    assert identifying_values(HyperParameters.from_dict(named)) == BASE
    phases = [{"name": "a", "num_iterations": 2, "partners": {"prover": {"kind": "random"}}}]
    values = identifying_values(HyperParameters.from_dict(BASE | {"phases": phases}))
    assert values == BASE | {"phases": phases, "rl": {"num_iterations": 2}}


@pytest.mark.parametrize(
    ("path", "section", "is_read"),
    [("rl.gamma", "rl", True), ("reinforce.use_advantage_and_critic", "reinforce", False)],
)
def test_a_changed_default_differs_from_the_first_one_if_it_is_read(
    monkeypatch, path, section, is_read
):
    current = HyperParameters.from_dict(BASE).get(path)
    old = not current if isinstance(current, bool) else 0.5
    monkeypatch.setattr(identity, "CHANGED_DEFAULTS", (DefaultChange(path, old, current, "9"),))
    unnamed = identifying_values(HyperParameters.from_dict(BASE))
    before = identifying_values(HyperParameters.from_dict(BASE).replace({path: old}))
    assert before == BASE, "as in the version before"
    assert (section in unnamed) == is_read
