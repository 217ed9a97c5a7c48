"""Rollouts of tensors are unchanged by saving and loading."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from ratchet.errors import CheckPointNotFoundError, DataError
from ratchet.rollouts.files import load_rollouts, read_about, save_rollouts


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
