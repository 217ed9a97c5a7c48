"""Keys: equal data gives equal keys, any change a different one, other data raises."""

from __future__ import annotations

import copy
import enum
import hashlib
import json
import math
import random
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.errors import StageKeyError
from ratchet.store.keys import canonical_json, check_key, stage_key

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
DATA = st.dictionaries(
    TEXT,
    st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
)


def key_of(parameters: Any, **changes: Any) -> str:
    arguments: dict[str, Any] = {
        "stage": "train",
        "iteration": 2,
        "inputs": {"base": "ab"},
        "fingerprint": "f",
    }
    return stage_key(parameters=parameters, **{**arguments, **changes})


def shuffled(value: Any, source: random.Random) -> Any:
    if isinstance(value, dict):
        items = [(name, shuffled(item, source)) for name, item in value.items()]
        source.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [shuffled(item, source) for item in value]
    return value


def leaf_paths(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value)
    places: list[tuple[Any, ...]] = []
    for name, item in pairs:
        if isinstance(item, dict | list):
            places += leaf_paths(item, (*place, name))
        else:
            places.append((*place, name))
    return places


@settings(deadline=None, max_examples=50)
@given(DATA, st.randoms(use_true_random=False))
def test_the_order_of_mappings_does_not_matter(data: Any, source: random.Random) -> None:
    assert key_of(shuffled(data, source)) == key_of(data)


@settings(deadline=None, max_examples=50)
@given(DATA, LEAVES, st.data())
def test_any_change_of_a_leaf_changes_the_key(data: Any, leaf: Any, draw: st.DataObject) -> None:
    places = leaf_paths(data)
    if not places:
        return
    *parents, last = draw.draw(st.sampled_from(places))
    changed = copy.deepcopy(data)
    target = changed
    for name in parents:
        target = target[name]
    same = type(target[last]) is type(leaf) and repr(target[last]) == repr(leaf)
    target[last] = leaf
    assert (key_of(changed) == key_of(data)) is same


@settings(deadline=None, max_examples=50)
@given(DATA)
def test_canonical_json_can_be_read_back(data: Any) -> None:
    assert json.loads(canonical_json(data)) == data


@settings(deadline=None, max_examples=50)
@given(DATA, DATA)
def test_different_data_has_different_keys(one: Any, two: Any) -> None:
    assert (canonical_json(one) == canonical_json(two)) == (key_of(one) == key_of(two))


def test_equal_numbers_of_different_types_have_different_keys() -> None:
    assert len({key_of({"a": value}) for value in (1, 1.0, True, "1", [1], None)}) == 6


def test_moving_a_leaf_changes_the_key() -> None:
    assert key_of({"a": {"b": 1}}) != key_of({"a.b": 1}) != key_of({"b": {"a": 1}})


def test_every_part_changes_the_key() -> None:
    keys = {
        key_of({}),
        key_of({}, stage="test"),
        key_of({}, iteration=3),
        key_of({}, inputs={"base": "ac"}),
        key_of({}, inputs={"other": "ab"}),
        key_of({}, fingerprint="g"),
    }
    assert len(keys) == 6


def test_the_key_of_an_example_never_changes() -> None:
    """A golden value: if it changes, every stored stage is lost, so raise SCHEMA_VERSION."""
    key = stage_key("train", 10, {"rl": {"lr": 0.001, "ümlaut": [1, None]}}, {"a": "b"}, "c")
    text = (
        '{"fingerprint":"c","inputs":{"a":"b"},"iteration":10,'
        '"parameters":{"rl":{"lr":0.001,"ümlaut":[1,null]}},"schema":1,"stage":"train"}'
    )
    assert key == hashlib.sha256(text.encode()).hexdigest()


def test_keys_do_not_depend_on_the_hash_seed(script: Callable[..., Any]) -> None:
    source = """
        from ratchet.store.fingerprint import code_fingerprint
        from ratchet.store.keys import stage_key
        from ratchet.store.store import StageStore
        names = {"b", "a", "rl", "agents", "prover"}
        digest = code_fingerprint(StageStore).digest
        print(stage_key("s", 1, {n: {m: 1 for m in names} for n in names}, {}, digest))
    """
    running: list[subprocess.Popen[str]] = [script(source, PYTHONHASHSEED=n) for n in "012"]
    outputs = [process.communicate(timeout=300) for process in running]
    assert len(outputs[0][0].strip()) == 64, outputs
    assert len({output for output, _ in outputs}) == 1


class Colour(enum.StrEnum):
    RED = "red"


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


def nested(depth: int) -> dict[str, Any]:
    """Return a mapping with this many lists in each other."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return {"a": value}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"rl": {"lr": math.nan}}, "rl.lr"),
        ({"rl": {"lr": -math.inf}}, "rl.lr"),
        ({"a": [0, {"b": {1, 2}}]}, "a.1.b"),
        ({"a": {1: "x"}}, "a.1"),
        ({"a": {None: "x"}}, "a.None"),
        ({"a": b"x"}, "a"),
        ({"a": object}, "a"),
        ({"a": Colour.RED}, "a"),
        ({"a": np.float64(1.0)}, "a"),
        ({"a": np.zeros(2)}, "a"),
        ({"a": "\ud800"}, "a"),
        ({"\udfff": 1}, "\\udfff"),
        ({"a": 1 << 5000}, "a"),
        ({"a": CYCLE}, "a.0.0"),
        (nested(63), "a.0"),
    ],
)
def test_data_without_canonical_form_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(StageKeyError, match="stage key: ") as caught:
        key_of(value)
    assert str(caught.value).split(" is ")[0].startswith(f"stage key: parameters.{path}")


def test_the_bound_on_depth_includes_itself() -> None:
    assert len(key_of(nested(62))) == 64


@pytest.mark.parametrize("iteration", [-1, True, 1.0, None, "1"])
def test_an_iteration_is_an_integer_from_zero(iteration: Any) -> None:
    with pytest.raises(StageKeyError, match="iteration"):
        key_of({}, iteration=iteration)


@pytest.mark.parametrize(
    "changes", [{"stage": ""}, {"fingerprint": ""}, {"fingerprint": None}, {"inputs": ["a"]}]
)
def test_empty_and_foreign_parts_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(StageKeyError, match=next(iter(changes))):
        key_of({}, **changes)


@pytest.mark.parametrize("key", ["", "../../etc", "A" * 64, "a" * 63, "a" * 64 + "\n", None])
def test_only_keys_are_keys(key: Any) -> None:
    with pytest.raises(StageKeyError, match="hexadecimal"):
        check_key(key)
