"""Nested states survive JSON and safetensors unchanged; values that need pickle are refused."""

from __future__ import annotations

import json
import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from tensordict import TensorDict

from ratchet.errors import StateError
from trainers.state_tree import flatten_tree, load_tree, save_tree, unflatten_tree

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.sampled_from(["$tensor", "$pairs", "$tuple"]),
)
KEYS = st.one_of(st.text(max_size=4), st.sampled_from(["$tensor", "$float"]), st.integers(-3, 3))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=12,
)


def through_files(tree):
    content, tensors = flatten_tree(tree)
    text = json.dumps(content, allow_nan=False)
    return unflatten_tree(json.loads(text), load(save(tensors)))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(TREES)
def test_plain_trees_come_back_equal_and_of_the_same_types(tree):
    found = through_files(tree)
    assert found == tree
    assert repr(found) == repr(tree)


def test_a_trained_optimizer_and_its_schedule_come_back_bit_by_bit():
    weight = torch.nn.Parameter(torch.randn(3, 2))
    optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.8, 0.9))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(3):
        weight.grad = torch.randn(3, 2)
        optimizer.step()
        schedule.step()
    states = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    fresh = torch.optim.Adam([torch.nn.Parameter(torch.zeros(3, 2))], lr=0.5)
    found = through_files(states)
    fresh.load_state_dict(found["optimizer"])
    assert fresh.param_groups[0]["betas"] == (0.8, 0.9)
    moments = fresh.state[fresh.param_groups[0]["params"][0]]
    assert moments["exp_avg"].equal(optimizer.state[weight]["exp_avg"])
    assert moments["step"] == 3
    assert found["schedule"] == states["schedule"]


def test_arrays_tensordicts_and_infinite_numbers_come_back():
    inner = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, batch_size=[3])
    tree = OrderedDict(td=inner, array=np.arange(4), number=np.float32(0.5), low=-math.inf)
    found = through_files(tree)
    assert (found["td"] == inner).all()
    assert found["td"].batch_size == inner.batch_size
    assert found["array"].tolist() == [0, 1, 2, 3]
    assert (found["number"], found["low"]) == (0.5, -math.inf)
    assert math.isnan(through_files({"x": math.nan})["x"])


def test_tensors_are_copies():
    tensor = torch.zeros(2)
    content, tensors = flatten_tree({"x": tensor})
    tensor += 1
    assert unflatten_tree(content, tensors)["x"].tolist() == [0, 0]


def test_tensors_that_share_memory_are_written(tmp_path):
    rows = torch.arange(6.0).reshape(3, 2)
    tree = {"rows": rows, "tied": rows, "last": rows[1:], "columns": rows.T, "none": rows[:0]}
    save_tree(tree, tmp_path, "state")
    mapped, copied = (load_tree(tmp_path, "state", copy=copy) for copy in (False, True))
    for file in tmp_path.iterdir():
        file.unlink()
    mapped["rows"] += 1
    assert torch.equal(mapped["rows"], rows + 1)
    for name, tensor in tree.items():
        assert torch.equal(copied[name], tensor)
        assert name == "rows" or torch.equal(mapped[name], tensor)


def test_what_needs_pickle_is_refused_by_its_path():
    with pytest.raises(StateError, match=r"hooks/mine/rule is a .*function.*without pickle"):
        flatten_tree({"hooks": {"mine": {"rule": lambda: None}}})
