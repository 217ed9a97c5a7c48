"""Explanations of cache misses: the differences from the most similar finished stage."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ratchet.store.fingerprint import Fingerprint
from ratchet.store.stage_index import StageIndex
from ratchet.store.store import StageStore


@pytest.fixture
def requested(store: StageStore, stage: Any) -> dict[str, Any]:
    """Description of a stored stage, for changes."""
    stage.make(store)
    return dict(stage.description)


def test_no_similar_stage(store: StageStore, requested: dict[str, Any]) -> None:
    for change in ({"stage": "test"}, {"iteration": 4}):
        assert (
            StageIndex(store).explain_miss(**{**requested, **change})
            == "no finished stage like this"
        )


def test_no_difference(store: StageStore, requested: dict[str, Any]) -> None:
    assert "no difference" in StageIndex(store).explain_miss(**requested)


def test_parameters_inputs_and_code_are_named(store: StageStore, requested: dict[str, Any]) -> None:
    requested["parameters"] = {"rl": {"lr": 0.001, "gamma": 0.9}, "agents": {"prover": [1, 2]}}
    requested["inputs"] = {"base": "cd" * 32, "base_iteration": 0}
    modules = {"trainers.one": "2" * 64, "trainers.two": "1" * 64}
    requested["fingerprint"] = Fingerprint.from_modules(modules)
    assert StageIndex(store).explain_miss(**requested).split("; ") == [
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
        ({"lr": 0.003, "gamma": 0.9, "on": 1}, "rl.on: (absent) → 1"),
    ],
)
def test_absent_values_and_other_types_differ(
    store: StageStore, requested: dict[str, Any], rl: dict[str, Any], expected: str
) -> None:
    assert StageIndex(store).explain_miss(**{**requested, "parameters": {"rl": rl}}) == expected


def test_the_nearest_one_is_compared(store: StageStore, new_stage: Any) -> None:
    far = new_stage(seed=1, size=1, trainer="a")
    near = new_stage(seed=2, size=2, trainer="b")
    far.make(store)
    near.make(store)
    for base in (far, near):
        parameters = {**base.description["parameters"], "seed": 9}
        line = StageIndex(store).explain_miss(**{**base.description, "parameters": parameters})
        assert line == f"seed: {base.description['parameters']['seed']} → 9"


def test_inputs_count_for_the_nearest_one(store: StageStore, new_stage: Any) -> None:
    near, far = new_stage(seed=1), new_stage(seed=1)
    far.description["inputs"] = {"base": "cd" * 32, "base_iteration": 1}
    near.make(store)
    time.sleep(0.002)  # the far one is newer
    far.make(store)
    line = StageIndex(store).explain_miss(**{**near.description, "parameters": {}})
    assert "input" not in line


def test_equal_values_of_different_types_differ(store: StageStore, new_stage: Any) -> None:
    stored = new_stage(size=1)
    stored.make(store)
    parameters = {**stored.description["parameters"], "size": 1.0}
    line = StageIndex(store).explain_miss(**{**stored.description, "parameters": parameters})
    assert line == "size: 1 → 1.0"


def test_of_equally_near_stages_the_newest_is_compared(store: StageStore, new_stage: Any) -> None:
    for seed in range(4):
        new_stage(seed=seed).make(store)
        time.sleep(0.002)  # times have milliseconds
    line = StageIndex(store).explain_miss(**new_stage(seed=9).description)
    assert line == "seed: 3 → 9"


def test_a_stage_of_the_same_scenario_is_compared_first_and_of_these_a_preferred_one(
    store: StageStore, new_stage: Any
) -> None:
    for scenario in ("graphs", "text"):
        new_stage(scenario=scenario, a=1, b=2 if scenario == "graphs" else 1).make(store)
    far = new_stage(scenario="text", a=0, b=0)
    far.make(store)
    requested = new_stage(scenario="text", a=1, b=2).description
    index = StageIndex(store)
    assert index.explain_miss(**requested) == "b: 1 → 2"
    assert index.explain_miss(**requested, preferred={far.key}) == "a: 0 → 1; b: 0 → 2"


def test_the_index_lists_the_identity_of_every_readable_stage(
    store: StageStore, new_stage: Any
) -> None:
    first, second = new_stage(seed=1), new_stage(seed=2)
    second.description |= {"stage": 'pretrain-"verifier"', "iteration": 7}
    for each in (first, second):
        each.make(store)
    identities = {first.key: ("train", 3), second.key: ('pretrain-"verifier"', 7)}
    assert {key: tuple(rest) for key, *rest in store.identities()} == identities
    (Path(store.location) / "stages" / second.key / "manifest.json").write_bytes(b"{}")
    assert [key for key, *_ in store.identities()] == [first.key]
