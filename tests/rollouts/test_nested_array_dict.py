"""NestedArrayDict does to every array what NumPy does to one."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ratchet.errors import ArrayShapeError, ArrayTypeError, BatchIndexError, KeyPathError
from ratchet.rollouts.arrays import STRING
from ratchet.rollouts.concatenation import concatenate_nested_array_dicts, stack_nested_array_dicts
from ratchet.rollouts.nested_array_dict import NestedArrayDict

FAST = settings(max_examples=25, deadline=None)


def same(first: np.ndarray, second: np.ndarray) -> bool:
    return (
        isinstance(first, np.ndarray)
        and first.dtype == second.dtype
        and first.shape == second.shape
        and all(a == b or (a != a and b != b) for a, b in zip(first.flat, second.flat, strict=True))
    )


def batch_indices(batch: tuple[int, ...]) -> st.SearchStrategy[object]:
    basic = hnp.basic_indices(batch, allow_newaxis=True, allow_ellipsis=True)
    masks = hnp.arrays(np.bool_, batch) if batch else st.just(...)
    arrays = st.just(slice(None))
    if batch and min(batch) > 0:
        shapes = hnp.array_shapes(max_dims=2, max_side=3)
        arrays = st.integers(1, len(batch)).flatmap(
            lambda dims: hnp.integer_array_indices(batch[:dims], result_shape=shapes)
        )
    return basic | masks | arrays


@FAST
@given(data=st.data())
def test_an_index_does_to_each_array_what_numpy_does(plain_dicts, flatten, data):
    batch, plain = data.draw(plain_dicts(min_dims=1))
    nad = NestedArrayDict(plain, batch)
    index = data.draw(batch_indices(batch))
    got = nad[index]
    expected_size = np.empty(batch)[index].shape
    assert got.batch_size == expected_size
    flat = dict(got.leaves())
    for path, array in flatten(plain).items():
        # Only the batch dimensions of each array are compared.
        cells = np.empty(batch, dtype=object)
        for place in np.ndindex(*batch):
            cells[place] = array[place]
        picked = cells[index]
        assert flat[path].shape == expected_size + array.shape[len(batch) :]
        for place in np.ndindex(*expected_size):
            cell = picked[place] if isinstance(picked, np.ndarray) else picked
            assert same(np.asarray(flat[path][place], array.dtype), np.asarray(cell, array.dtype))


@FAST
@given(data=st.data())
def test_key_paths_give_the_arrays_that_were_put_there(plain_dicts, flatten, data):
    batch, plain = data.draw(plain_dicts())
    nad = NestedArrayDict(plain, batch)
    flat = flatten(plain)
    assert dict(nad.leaves()).keys() == flat.keys()
    for path, array in flat.items():
        assert nad[path] is array
        assert nad.array(path) is array
        assert path in nad
    as_keys = [path if len(path) > 1 else path[0] for path in flat]
    assert nad.keys(include_nested=True, leaves_only=True) == as_keys
    assert nad.keys() == list(plain)
    assert NestedArrayDict(nad.to_dict(), batch) == nad


@FAST
@given(data=st.data())
def test_a_clone_is_equal_and_shares_nothing(plain_dicts, flatten, data):
    batch, plain = data.draw(plain_dicts())
    nad = NestedArrayDict(plain, batch)
    clone = nad.clone()
    assert clone == nad
    for path, array in clone.leaves():
        assert not np.shares_memory(array, nad[path]) or array.size == 0


@FAST
@given(data=st.data())
def test_one_changed_value_makes_a_difference(plain_dicts, data):
    batch, plain = data.draw(plain_dicts(min_dims=1, min_side=1))
    nad = NestedArrayDict(plain, batch)
    full = [(path, array) for path, array in nad.leaves() if array.size]
    if not full:
        return
    path, array = data.draw(st.sampled_from(full))
    other = nad.clone()
    cell = other[path].reshape(-1)
    old = cell[0]
    cell[0] = (old or "") + "x" if array.dtype == STRING else not old
    assert other != nad


@FAST
@given(data=st.data())
def test_stacking_and_taking_apart_are_inverse(plain_dicts, data):
    batch, plain = data.draw(plain_dicts())
    one = NestedArrayDict(plain, batch)
    two = NestedArrayDict.zeros_like(one)
    dim = data.draw(st.integers(-len(batch) - 1, len(batch)))
    stacked = stack_nested_array_dicts([one, two, one], dim)
    place = dim % (len(batch) + 1)
    assert stacked.batch_size == (*batch[:place], 3, *batch[place:])
    for number, part in enumerate([one, two, one]):
        assert stacked[(*(slice(None),) * place, number)] == part


@FAST
@given(data=st.data())
def test_concatenating_cut_parts_gives_the_whole(plain_dicts, data):
    batch, plain = data.draw(plain_dicts(min_dims=1))
    whole = NestedArrayDict(plain, batch)
    dim = data.draw(st.integers(-len(batch), len(batch) - 1))
    place = dim % len(batch)
    cut = data.draw(st.integers(0, batch[place]))
    before = (slice(None),) * place
    parts = [whole[(*before, slice(None, cut))], whole[(*before, slice(cut, None))]]
    assert concatenate_nested_array_dicts(parts, dim) == whole


@FAST
@given(data=st.data())
def test_writing_at_an_index_is_read_back_and_leaves_the_rest(plain_dicts, data):
    batch, plain = data.draw(plain_dicts(min_dims=1, min_side=1))
    nad = NestedArrayDict(plain, batch).clone()
    before = nad.clone()
    place = data.draw(st.integers(0, batch[0] - 1))
    nad[place] = NestedArrayDict.zeros_like(nad[place])
    assert nad[place] == NestedArrayDict.zeros_like(before[place])
    others = [row for row in range(batch[0]) if row != place]
    assert nad[others] == before[others]


@FAST
@given(data=st.data())
def test_zeros_are_zeros_of_the_same_kind(plain_dicts, data):
    batch, plain = data.draw(plain_dicts())
    nad = NestedArrayDict(plain, batch)
    for path, array in NestedArrayDict.zeros_like(nad).leaves():
        assert (array.shape, array.dtype) == (nad[path].shape, nad[path].dtype)
        assert all(value is None if array.dtype == STRING else value == 0 for value in array.flat)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (["a", None], STRING, ["a", None]),
        (["a\0", "b"], STRING, ["a\0", "b"]),
        (np.array(["ab", "c"]), STRING, ["ab", "c"]),
        (np.array(["é", None], dtype=object), STRING, ["é", None]),
        ([1, 2], np.int64, [1, 2]),
        (np.array([1, 2], dtype=np.uint8), np.int64, [1, 2]),
        (np.array([1, 2], dtype=">i4"), np.int64, [1, 2]),
        (np.array([0.5, 1], dtype=">f4"), np.float32, [0.5, 1]),
        ([True, False], np.bool_, [True, False]),
        (torch.tensor([1.5, 2.0]), np.float32, [1.5, 2.0]),
        (torch.tensor([1, 2], dtype=torch.int32), np.int64, [1, 2]),
    ],
)
def test_values_become_one_of_the_types_kept(value, dtype, expected):
    array = NestedArrayDict({"x": value}, 2)["x"]
    assert array.dtype == dtype
    assert array.dtype.isnative
    assert array.tolist() == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1, "a"], "among text"),
        ([["a"], ["b", "c"]], "agents.x"),
        ([1j, 2j], "complex128"),
        (np.array([b"a", b"b"]), "expected text"),
        (np.array([2**63, 0], dtype=np.uint64), "int64 can't hold"),
        (["\ud800", "b"], "lone surrogate"),
        ([object(), None], "type object"),
        (np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"), "datetime64"),
    ],
)
def test_other_values_are_refused_with_their_key_path(value, said):
    with pytest.raises(ArrayTypeError, match=r"agents\.x") as caught:
        NestedArrayDict({"agents": {"x": value}}, 2)
    assert said in str(caught.value)


def test_a_wrong_shape_names_the_path_the_shape_and_what_it_should_be():
    nad = NestedArrayDict({"agents": {"reward": np.zeros((2, 3))}}, 2)
    with pytest.raises(
        ArrayShapeError, match=r"agents\.reward: got shape \(3, 2\).*batch size \(2,\)"
    ):
        nad["agents", "reward"] = np.zeros((3, 2))
    with pytest.raises(ArrayShapeError, match=r"agents\.reward: got shape \(3,\)"):
        nad["agents"]["reward"] = np.zeros(3)
    with pytest.raises(ArrayShapeError, match=r"agents\.reward: got shape \(\)"):
        nad.update({"agents": {"reward": 1.0}})


def test_a_missing_key_names_the_path_and_the_nearest_name():
    nad = NestedArrayDict({"agents": {"reward": np.zeros(2)}}, 2)
    with pytest.raises(KeyPathError, match=r"^agents\.rewrd: .*Did you mean 'reward'\?"):
        nad["agents", "rewrd"]
    with pytest.raises(KeyError, match=r"^agents\.rewrd: "):
        nad["agents"]["rewrd"]
    with pytest.raises(KeyPathError, match=r"agents\.reward\.x: agents\.reward is an array"):
        nad["agents", "reward", "x"]
    with pytest.raises(KeyPathError, match=r"agents\.reward: is an array of shape \(2,\)"):
        nad["agents", "reward", "x"] = np.zeros(2)
    with pytest.raises(KeyPathError, match="expected a nested part"):
        nad.nested(("agents", "reward"))
    with pytest.raises(KeyPathError, match="expected an array"):
        nad.array("agents")


@pytest.mark.parametrize(
    "index", [2, -3, (0, 0), np.array([0, 5]), np.ones(3, dtype=bool), 1.5, True, [0.5], "abc".find]
)
def test_an_index_that_does_not_fit_says_the_batch_size_or_what_is_one(index):
    nad = NestedArrayDict({"x": np.zeros((2, 4))}, 2)
    with pytest.raises(BatchIndexError, match=r"batch size \(2,\)|expected a key path"):
        nad[index]


def test_an_index_never_reaches_behind_the_batch_dimensions():
    nad = NestedArrayDict({"x": np.arange(8).reshape(2, 4)}, 2)
    assert nad[..., 1]["x"].tolist() == [4, 5, 6, 7]
    wide = NestedArrayDict({"x": np.arange(6).reshape(2, 3)}, (2, 3))
    assert wide[..., None, 1]["x"].tolist() == [[1], [4]]


@pytest.mark.parametrize("name", ["", "a.b", 3])
def test_names_are_text_without_dots(name):
    with pytest.raises(KeyPathError, match="without dots"):
        NestedArrayDict({"part": {name: np.zeros(1)}}, 1)


def test_a_nested_part_is_the_thing_itself():
    nad = NestedArrayDict({"agents": {}}, 2)
    nad["agents"]["reward"] = [1.0, 2.0]
    nad["new", "part", "x"] = [1, 2]
    assert nad["agents", "reward"].tolist() == [1.0, 2.0]
    assert nad.keys(include_nested=True) == [
        *("agents", ("agents", "reward"), "new", ("new", "part"), ("new", "part", "x"))
    ]
    del nad["new", "part"]
    assert ("new", "part") not in nad
    assert "new" in nad


def test_update_merges_nested_parts():
    nad = NestedArrayDict({"agents": {"a": [1], "b": [2]}, "x": [0]}, 1)
    nad.update(NestedArrayDict({"agents": {"b": [3]}, "x": [4]}, 1)).update({"y": ["t"]})
    expected = {"agents": {"a": [1], "b": [3]}, "x": [4], "y": ["t"]}
    assert nad == NestedArrayDict(expected, 1)


def test_equality_knows_types_names_and_nan_but_no_order():
    one = NestedArrayDict({"x": [np.nan], "t": [None]}, 1)
    assert one == NestedArrayDict({"t": [None], "x": [np.nan]}, 1)
    assert one != NestedArrayDict({"x": [np.nan], "t": [""]}, 1)
    assert one != NestedArrayDict({"x": np.array([np.nan], dtype=np.float32), "t": [None]}, 1)
    assert one != NestedArrayDict({"x": [np.nan]}, 1)
    assert NestedArrayDict({"x": [[1]]}, 1) != NestedArrayDict({"x": [[1]]}, (1, 1))
    assert one != {"x": [np.nan]}


def test_what_does_not_match_cannot_be_joined_and_the_path_is_said():
    one = NestedArrayDict({"a": {"x": np.zeros((2, 3))}}, 2)
    with pytest.raises(ArrayShapeError, match=r"a\.x: .*got shape \(2, 4\), expected \(2, 3\)"):
        concatenate_nested_array_dicts([one, NestedArrayDict({"a": {"x": np.zeros((2, 4))}}, 2)])
    with pytest.raises(ArrayTypeError, match=r"a\.x: .*got int64, expected float64"):
        stack_nested_array_dicts([one, NestedArrayDict({"a": {"x": np.zeros((2, 3), int)}}, 2)])
    with pytest.raises(KeyPathError, match=r"a\.y is on one side only"):
        stack_nested_array_dicts(
            [one, NestedArrayDict({"a": {"x": np.zeros((2, 3)), "y": [1, 2]}}, 2)]
        )
    with pytest.raises(ArrayShapeError, match=r"batch size \(3,\)"):
        stack_nested_array_dicts([one, NestedArrayDict({"a": {"x": np.zeros((3, 3))}}, 3)])
    with pytest.raises(ArrayShapeError, match="at least one"):
        stack_nested_array_dicts([])
    with pytest.raises(ArrayShapeError, match="dim: got 1"):
        concatenate_nested_array_dicts([one], 1)


def test_a_refused_write_changes_nothing():
    nad = NestedArrayDict({"a": [1, 2], "x": [1, 2]}, 2)
    with pytest.raises(ArrayTypeError, match="x: got float64, expected int64"):
        nad[0] = NestedArrayDict({"a": 9, "x": 0.5}, ())
    with pytest.raises(ArrayShapeError, match="expected a NestedArrayDict of batch size"):
        nad[0] = 3
    assert nad["a"].tolist() == [1, 2]


def test_it_can_be_walked_copied_and_printed():
    nad = NestedArrayDict({"q": ["a", "b"], "agents": {"reward": np.zeros((2, 3), np.float32)}}, 2)
    assert [str(row["q"]) for row in nad] == ["a", "b"]
    assert len(nad) == 2
    assert copy.deepcopy(nad) == nad
    assert repr(nad) == (
        "NestedArrayDict(batch_size=(2,))\n  q: str (2,)\n  agents:\n    reward: float32 (2, 3)"
    )
    with pytest.raises(TypeError, match="no length"):
        len(nad[0])
