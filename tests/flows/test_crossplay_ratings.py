"""Ratings that games do not bound on a side are shown as open there."""

import math

import pytest

from flows.sweeps.crossplay import _points
from ratchet.statistics import Estimate


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (-30.2, 270.6, "+120 [−30, +271]"),
        (30.2, math.inf, "+120 [+30, ∞)"),
        (-math.inf, 270.6, "+120 (−∞, +271]"),
    ],
)
def test_an_unbounded_end_is_open(low, high, shown):
    assert _points(Estimate(120.4, low, high, 9)) == shown
