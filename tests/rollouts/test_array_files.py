"""Files of rollouts: arrays and tensors are unchanged by saving and loading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from ratchet.errors import CheckPointNotFoundError, DataError
from ratchet.rollouts.arrays import STRING
from ratchet.rollouts.files import (
    load_nested_array_dict,
    load_rollouts,
    read_about,
    save_nested_array_dict,
    save_rollouts,
)
from ratchet.rollouts.nested_array_dict import NestedArrayDict


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_what_is_saved_loads_equal(plain_dicts, tmp_path_factory, data):
    batch, plain = data.draw(plain_dicts())
    nad = NestedArrayDict(plain, batch)
    folder = tmp_path_factory.getbasetemp() / "round-trip"
    save_nested_array_dict(nad, folder / "first.parquet")
    loaded = load_nested_array_dict(folder / "first.parquet")
    assert loaded == nad
    for path, array in loaded.leaves():
        assert array.flags.writeable
        if array.dtype.kind == "f":
            assert np.signbit(array).tolist() == np.signbit(nad[path]).tolist()
    reversed_names = NestedArrayDict(dict(reversed(loaded.to_dict().items())), batch)
    save_nested_array_dict(reversed_names, folder / "second.parquet")
    first, second = ((folder / f"{n}.parquet").read_bytes() for n in ("first", "second"))
    assert first == second


@pytest.mark.parametrize("batch", [(), (0,), (0, 3), (3, 0), (2, 3)])
def test_any_batch_is_kept_even_an_empty_one(tmp_path, batch):
    leaves = {
        "text": np.full((*batch, 2), None, dtype=STRING),
        "part": {"x": np.zeros((*batch, 2, 3), np.float16), "none": np.zeros((*batch, 0), bool)},
        "empty": {},
    }
    nad = NestedArrayDict(leaves, batch)
    save_nested_array_dict(nad, tmp_path / "x.parquet")
    assert load_nested_array_dict(tmp_path / "x.parquet") == nad


def test_text_keeps_nothing_apart_from_empty_and_all_its_characters(tmp_path):
    texts = [None, "", "\0", "a\0", "é\U0001f600", "\r\n", "NaN", "None"]
    nad = NestedArrayDict({"x": texts}, len(texts))
    save_nested_array_dict(nad, tmp_path / "x.parquet")
    assert load_nested_array_dict(tmp_path / "x.parquet")["x"].tolist() == texts


def test_a_slice_is_saved_as_what_it_shows(tmp_path):
    whole = NestedArrayDict({"x": np.arange(24).reshape(4, 3, 2), "t": ["a", None, "b", "c"]}, 4)
    part = whole[::-2]
    save_nested_array_dict(part, tmp_path / "x.parquet")
    assert load_nested_array_dict(tmp_path / "x.parquet") == part.clone()


def test_other_tools_can_read_it(tmp_path):
    nad = NestedArrayDict({"q": ["a", None], "agents": {"reward": [[1.0, 2.0], [3.0, 4.0]]}}, 2)
    save_nested_array_dict(nad, tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {
        "agents.reward": [[1.0, 2.0], [3.0, 4.0]],
        "q": ["a", None],
    }


def test_nothing_is_left_beside_the_file(tmp_path):
    save_nested_array_dict(NestedArrayDict({"x": [1]}, 1), tmp_path / "new" / "x.parquet")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["x.parquet"]


def _missing(file: Path) -> None:
    file.unlink()


def _cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def _foreign(file: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), file)


def _column_lost(file: Path) -> None:
    table = pq.read_table(file)
    pq.write_table(table.drop_columns(["x"]), file)


def _rows_lost(file: Path) -> None:
    pq.write_table(pq.read_table(file).slice(1), file)


@pytest.mark.parametrize("damage", [_missing, _cut_short, _foreign, _column_lost, _rows_lost])
def test_a_damaged_file_is_refused_by_name(tmp_path, damage):
    file = tmp_path / "rollouts.parquet"
    save_nested_array_dict(NestedArrayDict({"x": [1, 2], "y": ["a", "b"]}, 2), file)
    damage(file)
    with pytest.raises(DataError, match=r"rollouts\.parquet.*save_nested_array_dict"):
        load_nested_array_dict(file)


def test_rollouts_come_back_with_names_types_and_sizes(tmp_path):
    content = {
        "y": torch.arange(6).view(2, 3),
        "agents": {"done": torch.ones(2, 3, 2).bool(), "value": torch.full((2, 3, 2), torch.nan)},
        "next": {"agents": {"reward": torch.rand(2, 3, 2)}},
        "x": torch.zeros(2, 3, 0, dtype=torch.uint8),
    }
    rollouts = TensorDict(content, batch_size=[2, 3])
    save_rollouts(rollouts, tmp_path / "a.safetensors", {"agent_names": '["a", "b"]'})
    back = load_rollouts(tmp_path / "a.safetensors")
    assert back.batch_size == rollouts.batch_size
    keys = set(rollouts.keys(True, True))
    assert set(back.keys(True, True)) == keys
    for key in keys:
        assert back[key].dtype == rollouts[key].dtype
        assert torch.equal(back[key].nan_to_num(7), rollouts[key].nan_to_num(7))
    assert read_about(tmp_path / "a.safetensors", "agent_names") == '["a", "b"]'


def test_the_same_rollouts_are_the_same_bytes(tmp_path):
    rollouts = TensorDict({"b": torch.ones(2), "a": torch.zeros(2)}, batch_size=[2])
    about = {name: name for name in "abcdefgh"}
    for name in "xyz":
        save_rollouts(rollouts, tmp_path / name, about)
    assert len({(tmp_path / name).read_bytes() for name in "xyz"}) == 1


def test_what_is_no_file_of_rollouts_is_said(tmp_path):
    with pytest.raises(CheckPointNotFoundError, match="no such file"):
        load_rollouts(tmp_path / "a")
    (tmp_path / "b").write_bytes(b"\x80\x04pickle")
    with pytest.raises(DataError, match="not a file of rollouts"):
        load_rollouts(tmp_path / "b")
    bad = TensorDict({"a/b": torch.zeros(1)}, batch_size=[1])
    with pytest.raises(DataError, match="contains '/'"):
        save_rollouts(bad, tmp_path / "c")
