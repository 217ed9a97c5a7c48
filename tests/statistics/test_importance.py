"""Importance finds relevant parameters, ignores noise, and reports when it has no power."""

import itertools

import numpy as np
import pytest

from ratchet.errors import DataError
from ratchet.statistics.importance import parameter_importance, varying_paths


def grid(score, seeds=3):
    """Return points and scores of a grid: a learning rate, a protocol, an irrelevant parameter."""
    rng = np.random.default_rng(0)
    values = itertools.product((0.001, 0.01, 0.1), ("nip", "adp"), (1, 2), range(seeds))
    points = [{"lr": lr, "protocol": p, "idle": i, "fixed": 7} for lr, p, i, _ in values]
    return points, [score(point) + rng.normal(0, 0.02) for point in points]


def test_parameters_are_sorted_by_importance_and_irrelevant_ones_have_none():
    points, scores = grid(lambda p: 0.4 * (p["lr"] == 0.01) + 0.15 * (p["protocol"] == "nip"))
    found = parameter_importance(points, scores)
    assert [each.path for each in found.parameters] == ["lr", "protocol", "idle"]
    lr, protocol, idle = (each.value for each in found.parameters)
    assert lr > 2 * protocol > 0.1
    assert abs(idle) < 0.03
    assert found.explained > 0.9
    assert found.num_runs == len(points)
    assert found == parameter_importance(points, scores)


def test_interactions_count_for_both_parameters():
    points, scores = grid(lambda p: float((p["lr"] == 0.01) != (p["protocol"] == "nip")))
    values = {each.path: each.value for each in parameter_importance(points, scores).parameters}
    assert values["protocol"] > 0.3
    assert values["lr"] > 0.3


def test_noise_explains_no_variance():
    points, _ = grid(lambda _: 0.0)
    found = parameter_importance(points, np.random.default_rng(3).normal(size=len(points)).tolist())
    assert found.explained < 0.1


def test_too_few_runs_or_no_variation_give_no_importance():
    points, scores = grid(lambda p: p["lr"])
    assert parameter_importance(points[:7], scores[:7]) is None
    assert parameter_importance(points, [0.5] * len(points)) is None
    assert parameter_importance([{"lr": 1}] * 9, list(range(9))) is None
    assert varying_paths([{"a": 1, "b": [1]}, {"a": 1, "b": [2]}]) == ["b"]
    with pytest.raises(DataError, match="finite"):
        parameter_importance(points, [float("nan")] * len(points))
