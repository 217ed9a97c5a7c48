"""Datasets of nested arrays, and the order of their datapoints."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.errors import DataError
from ratchet.rollouts.dataset import DataOrder, NestedArrayDictDataset
from ratchet.rollouts.files import save_nested_array_dict
from ratchet.rollouts.nested_array_dict import NestedArrayDict


def dataset(**changes: object) -> NestedArrayDictDataset:
    fields = {
        "question": ["a", "b", "c"],
        "solution": ["x", None, ""],
        "y": [0, 1, 0],
        "datapoint_id": [0, 1, 2],
        "part": {"score": np.array([0.5, 1, 2], np.float32)},
    }
    return NestedArrayDictDataset(NestedArrayDict(fields | changes, 3))


def test_gathering_gives_the_datapoints_asked_for():
    data = dataset()
    assert len(data) == 3
    assert data.fields == ["datapoint_id", "part.score", "question", "solution", "y"]
    assert data.gather([2, 0, 2])["question"].tolist() == ["c", "a", "c"]
    assert data.gather(np.array([[1]])).batch_size == (1, 1)
    assert data.gather([]).batch_size == (0,)
    assert data["y"].tolist() == [0, 1, 0]
    assert len(data.take(2)) == 2
    assert data.take(9) is data.take(None) is data


def test_the_hash_depends_on_content_alone():
    fields = dict(reversed(dataset().data.to_dict().items()))
    assert NestedArrayDictDataset(NestedArrayDict(fields, 3)) == dataset()
    assert hash(dataset()) == hash(dataset())


@pytest.mark.parametrize(
    "changes",
    [
        {"solution": ["x", "", ""]},
        {"solution": ["x", "null", ""]},
        {"question": ["a", "bc", ""]},
        {"y": [0, 1, 1]},
        {"y": [0.0, 1.0, 0.0]},
        {"part": {"score": np.array([0.5, 1, 2])}},
        {"more": [1, 2, 3]},
    ],
)
def test_the_hash_changes_with_any_value_type_or_name(changes):
    assert dataset(**changes) != dataset()


def test_a_saved_dataset_loads_equal(tmp_path):
    dataset().save(tmp_path / "data")
    assert sorted(file.name for file in (tmp_path / "data").iterdir()) == [
        "dataset.json",
        "dataset.parquet",
    ]
    loaded = NestedArrayDictDataset.load(tmp_path / "data")
    assert loaded == dataset()
    assert loaded.data == dataset().data


def test_a_changed_file_is_noticed(tmp_path):
    dataset().save(tmp_path)
    save_nested_array_dict(dataset(y=[1, 1, 1]).data, tmp_path / "dataset.parquet")
    with pytest.raises(DataError, match="build the dataset again"):
        NestedArrayDictDataset.load(tmp_path)
    assert NestedArrayDictDataset.load(tmp_path, check=False)["y"].tolist() == [1, 1, 1]


def test_another_schema_or_no_description_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"Expected dataset\.json and dataset\.parquet"):
        NestedArrayDictDataset.load(tmp_path)
    dataset().save(tmp_path)
    description = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps(description | {"schema": 99}))
    with pytest.raises(DataError, match="schema 99, expected 1"):
        NestedArrayDictDataset.load(tmp_path)


@pytest.mark.parametrize("batch_size", [(), (0,), (1, 1)])
def test_a_dataset_has_one_dimension_and_a_datapoint(batch_size):
    with pytest.raises(DataError, match="one leading dimension"):
        NestedArrayDictDataset(NestedArrayDict({"y": np.zeros(batch_size)}, batch_size))


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 7),
    start=st.integers(0, 30),
    count=st.integers(0, 30),
    cut=st.integers(0, 30),
)
def test_cutting_changes_nothing_and_every_epoch_has_each_datapoint_once(size, start, count, cut):
    order = DataOrder(3, size)
    taken = order.take(start, count)
    assert taken.dtype == np.int64
    cut = min(cut, count)
    again = DataOrder(3, size)
    parts = [again.take(start + cut, count - cut), again.take(start, cut)]
    assert taken.tolist() == [*parts[1], *parts[0]]
    whole = order.take(0, 12 * size).reshape(12, size)
    assert (np.sort(whole, axis=1) == np.arange(size)).all()
    assert taken.tolist() == order.take(0, start + count)[start:].tolist()


def test_seed_purpose_and_epoch_each_change_the_order():
    def first(seed: int = 0, purpose: str = "train", start: int = 0) -> list[int]:
        return DataOrder(seed, 50, purpose=purpose).take(start, 50).tolist()

    orders = [first(), first(seed=1), first(purpose="test"), first(start=50)]
    assert len({tuple(order) for order in orders}) == 4
    assert DataOrder(0, 3, shuffle=False).take(2, 5).tolist() == [2, 0, 1, 2, 0]


def test_the_order_is_the_same_on_every_machine():
    assert DataOrder(0, 8).take(0, 16).tolist() == [
        *[6, 2, 0, 1, 7, 3, 5, 4],
        *[4, 0, 5, 2, 1, 7, 6, 3],
    ]


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (0, -1)])
def test_negative_positions_are_refused(start, count):
    with pytest.raises(DataError, match="none negative"):
        DataOrder(0, 3).take(start, count)


def test_an_order_of_nothing_is_refused():
    with pytest.raises(DataError, match="size 0"):
        DataOrder(0, 0)
