"""Ratings fit results exactly where they can, and have the intervals of the likelihood."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.statistics.ratings import POINTS, elo_ratings


def chances(s: NDArray[np.float64], t: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = 1 / (1 + np.exp(-(s[:, None] - t[None, :])))
    return result


def test_two_players_are_as_far_apart_as_their_odds() -> None:
    (row,), (column,) = elo_ratings(np.array([[90.0]]), np.array([[99.0]]))
    odds = 90.5 / 9.5
    assert row.value - column.value == pytest.approx(400 * np.log10(odds))
    assert row.value == pytest.approx(-column.value)
    error = 1 / np.sqrt(100 * (90.5 / 100) * (9.5 / 100))  # of the log-odds
    assert row.high - row.value == pytest.approx(1.959964 * POINTS * error / 2)


@given(st.lists(st.floats(-2, 2), min_size=5, max_size=5), st.permutations(range(3)))
def test_ratings_recover_the_strengths_that_made_the_results(
    strengths: list[float], order: list[int]
) -> None:
    s, t = np.array(strengths[:3]), np.array(strengths[3:])
    played = np.full((3, 2), 1e9)
    won = played * chances(s, t)
    rows, columns = elo_ratings(won, played)
    found = np.array([each.value for each in (*rows, *columns)])
    expected = POINTS * (np.concatenate([s, t]) - np.mean(strengths))
    np.testing.assert_allclose(found, expected, atol=1e-3)
    again, _ = elo_ratings(won[order], played)
    assert [each.value for each in again] == pytest.approx([rows[i].value for i in order])


def test_a_player_that_wins_all_games_has_a_finite_rating() -> None:
    rows, _ = elo_ratings(np.array([[100.0, 100.0], [50, 40]]), np.full((2, 2), 100.0))
    assert 0 < rows[0].value < 2000
    assert rows[0].low > rows[1].high
    assert math.isinf(rows[0].high)
    assert math.isfinite(rows[1].high)


def test_games_do_not_bound_a_player_that_loses_all_from_below() -> None:
    rows, columns = elo_ratings(np.array([[0.0, 10.0], [0, 4]]), np.full((2, 2), 10.0))
    assert math.isinf(columns[0].high)  # wins all against both rows
    assert all(math.isfinite(end) for row in rows for end in (row.low, row.high))
    (row,), (column,) = elo_ratings(np.array([[0.0]]), np.array([[10.0]]))
    assert math.isinf(row.low)
    assert math.isinf(column.high)


@pytest.mark.parametrize(
    ("won", "played"),
    [([[1.0]], [[0.0]]), ([[2.0]], [[1.0]]), ([[1.0, 2]], [[3.0]]), ([[-1.0]], [[1.0]])],
)
def test_impossible_results_are_refused(won: list[list[float]], played: list[list[float]]) -> None:
    with pytest.raises(DataError):
        elo_ratings(np.array(won), np.array(played))
