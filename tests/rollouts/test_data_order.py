"""The order of datapoints: each once before any twice, a pure function of the position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.errors import DataError
from ratchet.rollouts.dataset import DataOrder


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
