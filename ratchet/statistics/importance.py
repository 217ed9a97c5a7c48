"""Parameter importance in a sweep: permutation importance of a random forest."""

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
    """Increase of the prediction error when one parameter's values are shuffled.

    ``value`` is the increase of the squared error over the variance of the scores, averaged over
    shuffles; ``spread`` is its standard deviation over shuffles. About 0 for an irrelevant
    parameter; above 2 only by chance.
    """

    path: str
    value: float
    spread: float


@dataclass(frozen=True)
class Importance:
    """Importances of all parameters, largest first.

    ``explained`` is the out-of-sample share of explained variance. The importances are
    meaningless if it is 0 or below.
    """

    parameters: Sequence[ParameterImportance]
    explained: float
    num_runs: int


def parameter_importance(
    points: Sequence[Mapping[str, object]], scores: Sequence[float], *, seed: int = 0
) -> Importance | None:
    """Estimate out-of-sample permutation importances with a random forest.

    Five-fold: a forest fitted to four fifths of the runs predicts the other fifth, also with the
    values of one parameter shuffled among all runs.

    Parameters
    ----------
    points
        Parameters of each run by dotted path; constant ones are skipped.
    scores
        One finite score per run.

    Returns
    -------
    Importance or None
        None with fewer than ``MIN_RUNS`` runs, equal scores, or no varying parameter.

    Notes
    -----
    Breiman, "Random forests" (2001), section 10; out of sample, since in sample even noise seems
    important. Parameters that always change together share their importance.
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
    importances = [
        ParameterImportance(path, float(each.mean()), float(each.std()))
        for path, each in zip(paths, growth, strict=True)
    ]
    importances.sort(key=lambda each: -each.value)
    return Importance(importances, 1 - plain / variance, len(y))


def varying_paths(points: Sequence[Mapping[str, object]]) -> list[str]:
    """List the parameters with more than one value, in order of appearance."""
    paths = dict.fromkeys(path for point in points for path in point)
    return [path for path in paths if len({_text(point.get(path)) for point in points}) > 1]


def encoded(values: Sequence[object]) -> FloatArray:
    """Return numbers unchanged and any other values as ranks."""
    if all(isinstance(value, (int, float)) for value in values):
        return np.array(values, dtype=np.float64)
    texts = [_text(value) for value in values]
    order = {text: rank for rank, text in enumerate(sorted(set(texts)))}
    return np.array([order[text] for text in texts], dtype=np.float64)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _squared_errors(
    x: FloatArray, y: FloatArray, rng: np.random.Generator, seed: int
) -> tuple[float, FloatArray]:
    """Return the out-of-sample mean squared error, plain and shuffled [parameters, repeats]."""
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
