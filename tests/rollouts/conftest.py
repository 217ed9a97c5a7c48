"""Nested dictionaries of plain arrays to compare with, and random rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ratchet.rollouts.arrays import STRING
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.specs import rollout_spec

Plain = dict[str, Any]
NAMES = ["a", "b", "reward", "prompt"]
TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
NUMBERS = st.sampled_from([np.bool_, np.int64, np.float16, np.float32, np.float64])


@st.composite
def text_arrays(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape))
    texts = draw(st.lists(TEXTS, min_size=size, max_size=size))
    array = np.empty(size, dtype=object)
    array[:] = texts
    return array.astype(STRING).reshape(shape)


@st.composite
def number_arrays(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.dtype(draw(NUMBERS))
    return draw(hnp.arrays(dtype, shape, elements=hnp.from_dtype(dtype, allow_nan=True)))


def leaves(batch: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    inner = st.sampled_from([(), (2,), (0,), (3, 1), (2, 2)])
    return inner.flatmap(lambda tail: text_arrays(batch + tail) | number_arrays(batch + tail))


@st.composite
def nested(draw: st.DrawFn, batches: st.SearchStrategy[tuple[int, ...]]) -> tuple[tuple, Plain]:
    batch = draw(batches)
    flat = st.dictionaries(st.sampled_from(NAMES), leaves(batch), max_size=3)
    deeper = st.dictionaries(st.sampled_from(NAMES), leaves(batch) | flat, max_size=3)
    return batch, draw(st.dictionaries(st.sampled_from(NAMES), leaves(batch) | deeper, max_size=4))


@pytest.fixture(scope="session")
def plain_dicts() -> Callable[..., st.SearchStrategy[tuple[tuple, Plain]]]:
    """Draws (batch size, nested plain dictionary of arrays)."""

    def strategy(min_dims: int = 0, min_side: int = 0) -> st.SearchStrategy[tuple[tuple, Plain]]:
        sides = st.integers(min_side, 3)
        return nested(st.lists(sides, min_size=min_dims, max_size=2).map(tuple))

    return strategy


@pytest.fixture(scope="session")
def flatten() -> Callable[[Plain], dict[tuple[str, ...], np.ndarray]]:
    """Gives the arrays of a nested plain dictionary by key path."""

    def flat(plain: Plain, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], np.ndarray]:
        found: dict[tuple[str, ...], np.ndarray] = {}
        for name, value in plain.items():
            path = (*above, name)
            found |= flat(value, path) if isinstance(value, dict) else {path: value}
        return found

    return flat


@pytest.fixture(scope="session")
def make_rollouts() -> Callable[..., NestedArrayDict]:
    """Makes random rollouts of a prover and a verifier in one channel, some undecided."""

    def make(seed: int, num_rollouts: int, num_datapoints: int = 3, rounds: int = 4) -> Any:
        rng = np.random.default_rng(seed)
        rollouts = rollout_spec(rounds, 2, 1).blank(num_rollouts)
        rollouts["rollout_id"][:] = np.arange(num_rollouts)
        rollouts["datapoint_id"] = rng.integers(0, num_datapoints, num_rollouts)
        rollouts["y"] = rollouts["datapoint_id"] % 2
        rollouts["question"][:] = "Is it\nright? é"
        rollouts["solution"][:] = "x = 1  \ny = 2\n"
        rollouts["round"][:] = np.arange(rounds)
        for row in range(num_rollouts):
            _play(rollouts, row, rng, rounds)
        return rollouts

    return make


def _play(rollouts: NestedArrayDict, row: int, rng: np.random.Generator, rounds: int) -> None:
    agents = rollouts["agents"]
    for step in range(rounds):
        who = step % 2
        rollouts["padding"][row, step] = False
        agents["active"][row, step, who] = True
        agents["raw_message"][row, step, who] = f"raw {row} {step}"
        agents["prompt"][row, step, who] = json.dumps([{"role": "user", "content": f"{step}"}])
        agents["valid"][row, step, who] = rng.random() < 0.8
        agents["retry_count"][row, step, who] = rng.integers(0, 3)
        agents["token_limit"][row, step, who] = rng.random() < 0.3
        agents["reward"][row, step] = rng.normal(size=2)
        if who == 1 and rng.random() < 0.5:
            agents["decision"][row, step, 1] = rng.integers(0, 2)
            rollouts["done"][row, step:] = True
            # Steps after the end belong to no agent, regardless of their content.
            agents["active"][row, step + 1 :] = True
            agents["retry_count"][row, step + 1 :] = 9
            return
        agents["message"][row, step, who, 0] = f"said {row} {step}"
    rollouts["terminated"][row, -1] = True
