"""Data are copied through page-locked memory only if the settings enable it."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from ratchet.scenarios.dataset import TensorDictDataset


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
