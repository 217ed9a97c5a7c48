"""Why a stage is a miss: the differences from the finished stage that is most like it."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.store.fingerprint import Fingerprint
from ratchet.store.misses import explain_miss
from ratchet.store.store import StageStore


@pytest.fixture
def wanted(store: StageStore, stage: Any) -> dict[str, Any]:
    """What was made, to be changed; the store has it."""
    stage.make(store)
    return dict(stage.description)


def test_nothing_like_it(store: StageStore, wanted: dict[str, Any]) -> None:
    for change in ({"stage": "test"}, {"iteration": 4}):
        assert explain_miss(store, **{**wanted, **change}) == "no finished stage like this"


def test_nothing_differs(store: StageStore, wanted: dict[str, Any]) -> None:
    assert "nothing differs" in explain_miss(store, **wanted)


def test_parameters_inputs_and_code_are_named(store: StageStore, wanted: dict[str, Any]) -> None:
    wanted["parameters"] = {"rl": {"lr": 0.001, "gamma": 0.9}, "agents": {"prover": [1, 2]}}
    wanted["inputs"] = {"base": "cd" * 32, "base_iteration": 0}
    modules = {"trainers.one": "2" * 64, "trainers.two": "1" * 64}
    wanted["fingerprint"] = Fingerprint.of_modules(modules)
    assert explain_miss(store, **wanted).split("; ") == [
        "agents.prover.0: (absent) → 1",
        "agents.prover.1: (absent) → 2",
        "rl.lr: 0.003 → 0.001",
        "input base: abababab → cdcdcdcd",
        "code: trainers.one changed",
        "and 1 more",
    ]


@pytest.mark.parametrize(
    ("rl", "expected"),
    [
        ({"lr": 0.003}, "rl.gamma: 0.9 → (absent)"),
        ({"lr": 0.003, "gamma": "0.9"}, "rl.gamma: 0.9 → 0.9"),
        ({"lr": 0.003, "gamma": None}, "rl.gamma: 0.9 → None"),
        ({"lr": 0.003, "gamma": []}, "rl.gamma: 0.9 → []"),
    ],
)
def test_what_is_absent_or_of_another_type_differs(
    store: StageStore, wanted: dict[str, Any], rl: dict[str, Any], expected: str
) -> None:
    assert explain_miss(store, **{**wanted, "parameters": {"rl": rl}}) == expected


def test_the_nearest_one_is_compared(store: StageStore, new_stage: Any) -> None:
    far = new_stage(seed=1, size=1, trainer="a")
    near = new_stage(seed=2, size=2, trainer="b")
    far.make(store)
    near.make(store)
    for base in (far, near):
        parameters = {**base.description["parameters"], "seed": 9}
        line = explain_miss(store, **{**base.description, "parameters": parameters})
        assert line == f"seed: {base.description['parameters']['seed']} → 9"
