"""Ratings of players from their results against each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError
from ratchet.statistics.estimate import Estimate

POINTS = 400 / np.log(10)
"""Elo points per unit of log-odds: 400 points are odds of ten to one."""
_STEPS = 100
_TOLERANCE = 1e-10
_Z = 1.959963984540054  # of a two-sided interval at 95 %


def elo_ratings(
    won: NDArray[np.float64], played: NDArray[np.float64]
) -> tuple[list[Estimate], list[Estimate]]:
    """Rate row and column players by the games that rows have won against columns.

    The Bradley–Terry model: row i wins against column j with the odds exp(sᵢ − tⱼ). Its maximum
    likelihood is found by Newton's method after adding half a win and half a loss to each pair, so
    that a player that wins all games has a finite rating. Ratings are on Elo's scale; all together
    have the mean 0. Intervals are ±1.96 standard errors from the Fisher information, which treats
    all games as independent. Games bound the rating of a player that wins all of its games only
    from below, and of one that loses all only from above: the other end is infinite.

    Parameters
    ----------
    won, played
        Games won by the row and games played, f64 [rows, columns]; every pair must have played.

    Returns
    -------
    tuple
        The ratings of rows and of columns; ``n`` are the games of a player.

    References
    ----------
    Bradley and Terry (1952), "Rank analysis of incomplete block designs: the method of paired
    comparisons"; Elo (1978), "The rating of chessplayers".
    """
    if won.shape != played.shape or won.ndim != 2 or not won.size:
        raise DataError(f"ratings: got shapes {won.shape} and {played.shape}, expected equal ones.")
    if (played <= 0).any() or (won < 0).any() or (won > played).any():
        raise DataError("ratings: expected 0 <= won <= played and played > 0 for every pair.")
    rows, columns = won.shape
    design = np.zeros((rows, columns, rows + columns))
    design[np.arange(rows), :, np.arange(rows)] = 1
    design[:, np.arange(columns), rows + np.arange(columns)] = -1
    games, wins = (played + 1).ravel(), (won + 0.5).ravel()
    pairs = design.reshape(-1, rows + columns)
    strength = np.zeros(rows + columns)
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-(pairs @ strength)))
        information = (pairs * (games * chance * (1 - chance))[:, None]).T @ pairs
        step = np.linalg.pinv(information) @ (pairs.T @ (wins - games * chance))
        strength = strength + step
        if np.abs(step).max() < _TOLERANCE:
            break
    rating = POINTS * (strength - strength.mean())  # only differences count
    error = POINTS * np.sqrt(np.diag(np.linalg.pinv(information)))
    num_games = np.concatenate([played.sum(1), played.sum(0)])
    num_won = np.concatenate([won.sum(1), (played - won).sum(0)])
    low = np.where(num_won == 0, -np.inf, rating - _Z * error)
    high = np.where(num_won == num_games, np.inf, rating + _Z * error)
    ends = zip(rating, low, high, num_games, strict=True)
    estimates = [
        Estimate(float(value), float(lowest), float(highest), int(n), method="Bradley–Terry")
        for value, lowest, highest, n in ends
    ]
    return estimates[:rows], estimates[rows:]
