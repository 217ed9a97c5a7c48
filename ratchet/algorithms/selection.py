"""Selection of rollouts for expert iteration, and the share with replaced decisions.

Pure functions on NumPy arrays.
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

    Compared as float32, the type of stored rewards: a reward of 0.9 reaches a threshold of 0.9.
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
    """Sample round(size_factor · N) rollouts, with probabilities that grow with the reward.

    Parameters
    ----------
    rewards
        One agent's reward of each rollout, float[N].
    generator
        Source of randomness.
    size_factor
        Number of samples as a share of N.
    minimum, epsilon
        See :func:`selection_weights`.
    replace
        Whether a rollout can be sampled more than once. If not, the number of samples is at most
        that of weights above zero.

    Returns
    -------
    int64[K]
        The sampled rollouts, in the order of sampling.
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
    """Return the share of a verifier's rollouts that are trained with the correct decision.

    ``none`` p₀; ``linear`` max(0, p₀ − r · i); ``exponential`` p₀ (1 − r)^i.

    Parameters
    ----------
    initial
        p₀.
    annealing
        Shape of the decline.
    rate
        r.
    iteration
        i, from 0.
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
    """Split ``count`` rollouts at random: round(proportion · count) reserved ones, and the rest.

    ``proportion`` is in [0, 1]. Returns int64[K] and int64[count - K], both in the order of the
    rollouts.
    """
    size = round(proportion * count)
    order = generator.permutation(count).astype(np.int64)
    return np.sort(order[:size]), np.sort(order[size:])
