"""Texts of numbers, intervals and amounts in reports."""

from __future__ import annotations

import math

from ratchet.reports.comparison.formatting import chance, is_different
from ratchet.reports.costs import Billed
from ratchet.reports.tables import signed
from ratchet.statistics import Estimate


def test_a_bill_shows_bounds_only_if_charges_are_unknown():
    assert Billed("run", 1.0, 1.0, 0).text == "1.00"
    assert Billed("run", 1.0, 2.5, 3).text == (
        "at least 1.00, at most 2.50: 3 attempts have no answer, and may have been billed"
    )


def test_differences_show_their_sign():
    assert signed(Estimate(0.5, 0.25, 0.75, 4)).startswith("+0.500 [")
    assert signed(Estimate(0.0, -1.0, 1.0, 4)).startswith("0.000 [")
    assert signed(Estimate(-0.5, -1.0, 0.0, 4)).startswith("\N{MINUS SIGN}0.500 [")


def test_a_probability_of_improvement_shows_its_interval_if_there_is_one():
    assert chance(None) == "–"
    assert chance(Estimate(0.75, math.nan, math.nan, 4)) == "75"
    assert chance(Estimate(0.75, 0.5, 1.0, 4)) == "75 [50, 100]"


def test_a_difference_excludes_one_half():
    assert not is_different(None)
    for low, high, expected in ((0.5, 1.0, False), (0.51, 1.0, True), (0.0, 0.49, True)):
        assert is_different(Estimate(0.7, low, high, 4)) == expected
