"""Specs create zeros and blanks that they accept, and report the location of errors."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.errors import ArrayShapeError, ArrayTypeError, DataError, KeyPathError
from ratchet.rollouts.arrays import STRING
from ratchet.rollouts.specs import (
    BoolArraySpec,
    CompositeSpec,
    FloatArraySpec,
    IntArraySpec,
    StringArraySpec,
    rollout_spec,
)


def spec(batch_size: int | None = 2) -> CompositeSpec:
    return CompositeSpec(
        {
            "question": StringArraySpec(),
            "agents": {
                "reward": FloatArraySpec((3,)),
                "decision": IntArraySpec((3,), nothing=2, low=0, high=2),
                "done": BoolArraySpec((3,), nothing=True),
            },
        },
        batch_size,
    )


def test_zeros_and_blanks_have_the_shapes_and_types_and_pass_the_check():
    zeros, blank = spec().zeros(), spec().blank()
    for made in (zeros, blank):
        spec().check(made)
        assert made.batch_size == (2,)
        assert made["question"].dtype == STRING
        assert made["question"].tolist() == [None, None]
        assert made["agents", "reward"].dtype == np.float32
    assert zeros["agents", "decision"].tolist() == [[0] * 3] * 2
    assert blank["agents", "decision"].tolist() == [[2] * 3] * 2
    assert blank["agents", "done"].all()
    assert spec(None).zeros((4, 1)).batch_size == (4, 1)


@pytest.mark.parametrize(
    ("path", "value", "error", "said"),
    [
        (
            ("agents", "reward"),
            np.zeros((2, 4), np.float32),
            ArrayShapeError,
            r"agents\.reward: got shape \(2, 4\), expected \(2, 3\)",
        ),
        (
            ("agents", "reward"),
            np.zeros((2, 3)),
            ArrayTypeError,
            r"agents\.reward: got float64, expected float32",
        ),
        (
            ("agents", "decision"),
            [[0, 1, 2], [0, 3, 1]],
            DataError,
            r"agents\.decision: got 3 at \(1, 1\), expected values from 0 to 2",
        ),
        (
            ("agents", "dones"),
            [1, 2],
            KeyPathError,
            r"agents\.dones: .*Did you mean 'agents\.done'",
        ),
    ],
)
def test_a_wrong_array_is_named(path, value, error, said):
    nad = spec().zeros()
    nad[path] = value
    with pytest.raises(error, match=said):
        spec().check(nad)


def test_a_missing_array_is_named_with_what_it_should_be():
    nad = spec().zeros()
    del nad["agents", "reward"]
    with pytest.raises(KeyPathError, match=r"agents\.reward: missing, expected float32 \(2, 3\)"):
        spec().check(nad)


def test_more_arrays_are_allowed_only_where_said():
    nad = spec().zeros()
    nad["level"] = [1, 2]
    with pytest.raises(KeyPathError, match="level"):
        spec().check(nad)
    spec().check(nad, allow_more=True)


def test_the_batch_size_is_checked_unless_open():
    with pytest.raises(ArrayShapeError, match=r"got batch size \(3,\), expected \(2,\)"):
        spec().check(spec(None).zeros(3))
    spec(None).check(spec().zeros())
    with pytest.raises(ArrayShapeError, match="no batch size"):
        spec(None).zeros()


def test_specs_are_found_by_key_path():
    assert spec()["agents", "reward"] == FloatArraySpec((3,))
    assert ("agents", "reward") in spec()
    assert spec() == spec() != spec(3)
    with pytest.raises(KeyPathError, match="Did you mean 'question'"):
        spec()["quetsion"]
    with pytest.raises(ArrayTypeError, match=r"a\.b: got 3"):
        CompositeSpec({"a": {"b": 3}})


def test_rollouts_have_the_layout_that_their_readers_expect():
    layout = rollout_spec(num_rounds=4, num_agents=3, num_channels=2)
    blank = layout.blank(5)
    layout.check(blank)
    shapes = {path: array.shape for path, array in blank.leaves()}
    assert shapes["message_history",] == shapes["message_agent_id",] == (5, 4, 2)
    assert shapes["raw_message_history",] == shapes["agents", "raw_message"] == (5, 4, 3)
    assert shapes["agents", "message"] == (5, 4, 3, 2)
    assert shapes["agents", "reward"] == (5, 4, 3)
    assert (blank["message_agent_id"] == -1).all()
    assert (blank["agents", "decision"] == 2).all()
    assert blank["padding"].all()
    assert not blank["agents", "active"].any()
