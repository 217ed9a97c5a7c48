"""Which rollouts an agent learns from: selection by reward, and the share with replaced guesses.

Pure functions on NumPy arrays; used by expert iteration.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ratchet.errors import ParameterError

Rewards: TypeAlias = npt.NDArray[np.floating[Any]]
Weights: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]


def threshold(rewards: Rewards, reward_threshold: float) -> Indices:
    """Choose the rollouts, int64[K] in order, whose reward, float[N], is not below a threshold.

    Compared as float32, which rewards are kept in: a reward of 0.9 reaches a threshold of 0.9.
    """
    reached = rewards.astype(np.float32) >= np.float32(reward_threshold)
    return np.flatnonzero(reached).astype(np.int64)


def selection_weights(rewards: Rewards, *, minimum: float | None, epsilon: float) -> Weights:
    """Return the probability of each rollout in weighted sampling.

    Proportional to max(R, m) − m, normalised; plus ε / N, normalised again. Uniform where all
    of these weights are zero.

    Parameters
    ----------
    rewards
        One agent's reward R of each rollout, float[N], N ≥ 1.
    minimum
        m; the smallest reward when None.
    epsilon
        ε.

    Returns
    -------
    float64[N]
        They sum to 1.
    """
    values = rewards.astype(np.float64)
    least = values.min() if minimum is None else minimum
    weights = np.maximum(values, least) - least
    total = weights.sum()
    if total <= 0:
        return np.full(len(values), 1 / len(values))
    weights = weights / total + epsilon / len(values)
    normalised: Weights = weights / weights.sum()
    return normalised


def weighted_sampling(
    rewards: Rewards,
    generator: np.random.Generator,
    *,
    size_factor: float = 0.5,
    minimum: float | None = None,
    epsilon: float = 0.01,
    replace: bool = True,
) -> Indices:
    """Draw round(size_factor · N) rollouts, those with more reward more often.

    Parameters
    ----------
    rewards
        One agent's reward of each rollout, float[N].
    generator
        Draws; the result depends on nothing else of it.
    size_factor
        How many are drawn, as a share of N.
    minimum, epsilon
        See :func:`selection_weights`.
    replace
        Whether a rollout can be drawn more than once. If not, at most as many are drawn as
        have a weight above zero.

    Returns
    -------
    int64[K]
        The drawn rollouts, in the order of drawing.
    """
    if len(rewards) == 0:
        return np.zeros(0, np.int64)
    weights = selection_weights(rewards, minimum=minimum, epsilon=epsilon)
    size = round(size_factor * len(rewards))
    if not replace:
        size = min(size, int(np.count_nonzero(weights)))
    drawn = generator.choice(len(rewards), size=size, replace=replace, p=weights)
    return drawn.astype(np.int64)


def guess_replacement_proportion(
    initial: float,
    annealing: Literal["none", "linear", "exponential"],
    rate: float,
    iteration: int,
) -> float:
    """Return the share of a verifier's rollouts that are trained with the true decision.

    ``none`` p₀; ``linear`` max(0, p₀ − r · i); ``exponential`` p₀ (1 − r)^i.

    Parameters
    ----------
    initial
        p₀.
    annealing
        How it falls.
    rate
        r.
    iteration
        i, from 0.

    Raises
    ------
    ParameterError
        For another annealing.
    """
    match annealing:
        case "none":
            return initial
        case "linear":
            return max(0.0, initial - rate * iteration)
        case "exponential":
            return float(initial * (1 - rate) ** iteration)
    raise ParameterError(
        f"annealing: got {annealing!r}, expected 'none', 'linear' or 'exponential'."
    )


def set_aside(
    count: int, proportion: float, generator: np.random.Generator
) -> tuple[Indices, Indices]:
    """Divide ``count`` rollouts at random: round(proportion · count) set aside, and the rest.

    ``proportion`` is in [0, 1]. Returns int64[K] and int64[count - K], both in the order of the
    rollouts.
    """
    size = round(proportion * count)
    order = generator.permutation(count).astype(np.int64)
    return np.sort(order[:size]), np.sort(order[size:])
