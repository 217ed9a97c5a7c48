"""One number for many runs: interquartile mean, median, mean, optimality gap.

Each is over the last axis, so that thousands of resamples are aggregated at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
Aggregate = Callable[[FloatArray], FloatArray]

TRIMMED_SHARE = 0.25


def interquartile_mean(scores: ArrayLike) -> FloatArray:
    """Average the middle half of the scores.

    A quarter, rounded down, is left out at each end: of five scores the best and the worst. With
    fewer than four it is the mean.

    Parameters
    ----------
    scores
        [..., N], at least one; all runs of all tasks.

    Returns
    -------
    numpy.ndarray
        [...].

    Notes
    -----
    Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice" (2021).
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=-1)
    num_scores = ordered.shape[-1]
    cut = int(TRIMMED_SHARE * num_scores)
    return np.asarray(ordered[..., cut : num_scores - cut].mean(axis=-1))


def median(scores: ArrayLike) -> FloatArray:
    """Return the median of the scores [..., N] of all runs of all tasks."""
    return np.asarray(np.median(np.asarray(scores, dtype=np.float64), axis=-1))


def mean(scores: ArrayLike) -> FloatArray:
    """Average the scores [..., N] of all runs of all tasks."""
    return np.asarray(np.asarray(scores, dtype=np.float64).mean(axis=-1))


def optimality_gap(scores: ArrayLike, target: float = 1.0) -> FloatArray:
    """Return by how much scores [..., N] fall short of a target on average.

    Those above it do not help. An ideal run reaches it: 1 for an accuracy.
    """
    short = target - np.minimum(np.asarray(scores, dtype=np.float64), target)
    return np.asarray(short.mean(axis=-1))
