"""Datasets of tensors: content, files, order, and copies through page-locked memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from ratchet.errors import DataError, StateError
from ratchet.scenarios.dataset import DataCursor, TensorDictDataset


def make_dataset(size: int = 5, offset: float = 0.0) -> TensorDictDataset:
    td = TensorDict(
        {
            "y": torch.arange(size) % 2,
            "image": torch.arange(size * 4.0).reshape(size, 2, 2) + offset,
            "nested": {"mask": torch.arange(size) > 2},
        },
        batch_size=[size],
    )
    return TensorDictDataset(td)


def test_saved_dataset_loads_equal(tmp_path):
    dataset = make_dataset()
    dataset.save(tmp_path / "data")
    loaded = TensorDictDataset.load(tmp_path / "data")
    assert loaded == dataset
    assert loaded.hash == dataset.hash
    assert loaded.fields == ["image", "nested.mask", "y"]
    assert torch.equal(loaded["image"], dataset["image"])
    assert loaded.td["nested", "mask"].dtype == torch.bool


def test_hash_sees_values_names_and_types():
    dataset = make_dataset()
    assert dataset.hash == make_dataset().hash
    assert dataset.hash != make_dataset(offset=1.0).hash
    renamed = TensorDictDataset(dataset.td.copy().rename_key_("y", "z"))
    assert dataset.hash != renamed.hash
    as_int32 = dataset.td.copy()
    as_int32["y"] = as_int32["y"].to(torch.int32)
    assert dataset.hash != TensorDictDataset(as_int32).hash


def test_damaged_or_missing_data_are_refused(tmp_path):
    dataset = make_dataset()
    dataset.save(tmp_path)
    path = tmp_path / TensorDictDataset.data_file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="build the dataset again"):
        TensorDictDataset.load(tmp_path)
    path.write_bytes(content[:50])
    with pytest.raises(DataError, match="cannot read"):
        TensorDictDataset.load(tmp_path)
    with pytest.raises(DataError, match="cannot read"):
        TensorDictDataset.load(tmp_path / "nowhere")


def test_gather_and_take():
    dataset = make_dataset()
    ids = torch.tensor([[3, 0], [4, 4]])
    gathered = dataset.gather(ids)
    assert gathered.batch_size == (2, 2)
    assert torch.equal(gathered["y"], ids % 2)
    assert len(dataset.take(2)) == 2
    assert dataset.take(None) is dataset
    assert len(dataset.take(100)) == 5
    with pytest.raises(DataError):
        TensorDictDataset(dataset.td[:0])
    with pytest.raises(DataError):
        TensorDictDataset(TensorDict({}, batch_size=[]))


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 20),
    seed=st.integers(0, 5),
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    shuffle=st.booleans(),
)
def test_cursor_gives_every_datapoint_once_before_any_twice(size, seed, counts, shuffle):
    cursor = DataCursor(size, seed, shuffle=shuffle)
    taken = torch.cat([cursor.take(count) for count in counts])
    assert len(taken) == sum(counts)
    for start in range(0, len(taken), size):
        epoch = taken[start : start + size].tolist()
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(size))
        if len(epoch) == size:
            assert sorted(epoch) == list(range(size))
    assert cursor.state_dict() == {"epoch": sum(counts) // size, "position": sum(counts) % size}


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 12), before=st.integers(0, 40), after=st.integers(0, 40))
def test_cursor_goes_on_where_it_was_saved(size, before, after):
    cursor = DataCursor(size, 3)
    cursor.take(before)
    other = DataCursor(size, 3)
    other.load_state_dict(cursor.state_dict())
    assert torch.equal(cursor.take(after), other.take(after))


def test_cursors_differ_by_seed_purpose_and_epoch():
    first = DataCursor(50, 0)
    epochs = [first.take(50) for _ in range(2)]
    assert not torch.equal(*epochs)
    assert not torch.equal(epochs[0], DataCursor(50, 1).take(50))
    assert not torch.equal(epochs[0], DataCursor(50, 0, purpose="solo").take(50))


@pytest.mark.parametrize(
    "state", [{}, {"epoch": 0}, {"epoch": 0, "position": 7}, {"epoch": -1, "position": 0}]
)
def test_cursor_refuses_states_of_other_datasets(state):
    with pytest.raises(StateError, match="another dataset"):
        DataCursor(7, 0).load_state_dict(state)


@pytest.mark.parametrize(
    ("device", "asked", "pinned"),
    [("meta", True, True), ("meta", False, False), ("cpu", True, False)],
)
def test_memory_is_pinned_on_the_way_to_an_accelerator_if_asked(monkeypatch, device, asked, pinned):
    """``meta`` stands for an accelerator: another device, of which none is needed here."""
    calls = []
    monkeypatch.setattr(TensorDict, "pin_memory", lambda self: calls.append(1) or self)
    dataset = TensorDictDataset(TensorDict({"y": torch.arange(3)}, batch_size=[3]))
    moved = dataset.to(device, pin_memory=asked)
    assert bool(calls) == pinned
    assert moved["y"].device.type == device
    assert moved["y"].shape == (3,)
