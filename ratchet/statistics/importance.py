"""Which parameters of a sweep matter: what a random forest cannot foretell without them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.errors import DataError

FloatArray = NDArray[np.float64]

MIN_RUNS = 8
NUM_FOLDS = 5
NUM_TREES = 100
NUM_REPEATS = 10


@dataclass(frozen=True)
class ParameterImportance:
    """How much worse runs are foretold when one parameter's values are shuffled.

    ``value`` is the growth of the squared error over the variance of the scores, averaged over
    shuffles; ``spread`` is its standard deviation among them. About 0 if the parameter tells
    nothing; not above 2, unless by chance.
    """

    path: str
    value: float
    spread: float


@dataclass(frozen=True)
class Importance:
    """Of all parameters, largest first.

    ``explained`` is the share of the scores' variance that the forest foretells of runs that it
    has not seen. At 0 or below the importances say nothing.
    """

    parameters: Sequence[ParameterImportance]
    explained: float
    num_runs: int


def parameter_importance(
    points: Sequence[Mapping[str, object]], scores: Sequence[float], *, seed: int = 0
) -> Importance | None:
    """Judge parameters by the permutation importance of a random forest, out of sample.

    A forest is fitted to four fifths of the runs and foretells the fifth; then with the values of
    one parameter shuffled among all runs.

    Parameters
    ----------
    points
        The parameters of each run by dotted path; of those of one value only nothing is told.
    scores
        Of each run; finite.

    Returns
    -------
    Importance or None
        None with fewer than ``MIN_RUNS`` runs, equal scores, or nothing that varies.

    Raises
    ------
    DataError
        If there are not as many scores, or one is not finite.

    Notes
    -----
    Breiman, "Random forests" (2001), section 10; out of sample, since in sample a forest finds
    even noise important. Parameters that always change together share their importance, and what
    matters only beyond the values that were tried is not seen.
    """
    y = np.asarray(scores, dtype=np.float64)
    if len(y) != len(points) or not np.isfinite(y).all():
        raise DataError(
            f"parameter_importance: got {len(points)} runs and the scores {list(scores)[:5]} …,"
            " expected a finite score for each run."
        )
    paths = varying_paths(points)
    if len(y) < MIN_RUNS or np.ptp(y) == 0 or not paths:
        return None
    x = np.column_stack([encoded([point.get(path) for point in points]) for path in paths])
    plain, shuffled = _squared_errors(x, y, np.random.default_rng(seed), seed)
    variance = float(y.var())
    growth = (shuffled - plain) / variance
    found = [
        ParameterImportance(path, float(each.mean()), float(each.std()))
        for path, each in zip(paths, growth, strict=True)
    ]
    found.sort(key=lambda each: -each.value)
    return Importance(found, 1 - plain / variance, len(y))


def varying_paths(points: Sequence[Mapping[str, object]]) -> list[str]:
    """List the parameters that have more than one value, in the order in which they appear."""
    paths = dict.fromkeys(path for point in points for path in point)
    return [path for path in paths if len({_text(point.get(path)) for point in points}) > 1]


def encoded(values: Sequence[object]) -> FloatArray:
    """Return numbers as they are, and of anything else its place among the values in order."""
    if all(isinstance(value, (int, float)) for value in values):
        return np.array(values, dtype=np.float64)
    texts = [_text(value) for value in values]
    order = {text: place for place, text in enumerate(sorted(set(texts)))}
    return np.array([order[text] for text in texts], dtype=np.float64)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _squared_errors(
    x: FloatArray, y: FloatArray, rng: np.random.Generator, seed: int
) -> tuple[float, FloatArray]:
    """Return the mean squared error out of sample: plain, and [parameters, repeats] shuffled."""
    from sklearn.ensemble import RandomForestRegressor

    plain, shuffled = 0.0, np.zeros((x.shape[1], NUM_REPEATS))
    for fold in np.array_split(rng.permutation(len(y)), NUM_FOLDS):
        train = np.setdiff1d(np.arange(len(y)), fold)
        forest = RandomForestRegressor(NUM_TREES, random_state=seed, n_jobs=1)
        forest.fit(x[train], y[train])
        plain += float(((forest.predict(x[fold]) - y[fold]) ** 2).sum())
        for column in range(x.shape[1]):
            changed = np.tile(x[fold], (NUM_REPEATS, 1))
            drawn = [rng.choice(x[:, column], len(fold)) for _ in range(NUM_REPEATS)]
            changed[:, column] = np.concatenate(drawn)
            errors = (forest.predict(changed) - np.tile(y[fold], NUM_REPEATS)) ** 2
            shuffled[column] += errors.reshape(NUM_REPEATS, -1).sum(axis=1)
    return plain / len(y), shuffled / len(y)
