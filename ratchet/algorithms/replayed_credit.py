"""Replayed credit: the contribution of one agent's reply to a reward, without a critic.

A turn is redrawn k times from the same prefix, and each alternative is continued with the random
numbers of the original episode. The k + 1 draws of a turn are the original reply, a_0, and the
alternatives a_1 to a_k; each has a reward R_i of the whole episode. The estimate of the turn's
policy gradient is

    1/(k + 1) Σ_i (R_i − mean_{j≠i} R_j) ∇ log π(a_i | h).

It is unbiased. Let ω be the random numbers of all other turns; they determine the prefix h, and
R_i is a function of a_i and ω. Given ω, the draws are independent and distributed as π(· | h), so
that E[R_j ∇ log π(a_i | h) | ω] = E[R_j | ω] · 0 for j ≠ i, and the expectation of each term is
E[R_i ∇ log π(a_i | h)], the gradient. The other agents' noise, which is the same in R_i and R_j,
cancels where it adds to the reward. With fresh random numbers the estimate is unbiased too.

The leave-one-out means are those of :func:`ratchet.algorithms.language.group_advantages`; this
module finds the draws that are compared. Shapes: ``N`` rollouts, ``T`` steps, ``K`` replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ratchet.errors import DataError, ParameterError, nearest

Indices: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.floating[Any]]

NOT_REDRAWN = -1
REDRAWN = "redrawn"
"""The metric of a trajectory: 1 if it is of a redrawn rollout, 0 if of an original."""


class CreditedReplies(NamedTuple):
    """Replies of one agent that learn, by row and step.

    Attributes
    ----------
    row, step
        The rollout and the step of each reply, int64[K].
    original
        The row of the original rollout, int64[K]. Draws of one turn have the same original and
        step.
    reward
        The reward of each reply, float64[K].
    """

    row: Indices
    step: Indices
    original: Indices
    reward: Floats


def original_rows(redrawn: Indices) -> Indices:
    """Return the row of the rollout that each rollout was redrawn from, int64[N].

    Parameters
    ----------
    redrawn
        int64[N, T]: the index of the agent whose turn was redrawn at a step, else -1. A rollout
        without redrawn turns is an original; those redrawn from it follow it.
    """
    turns = (redrawn != NOT_REDRAWN).sum(axis=1)
    if len(turns) and (turns[0] != 0 or turns.max() > 1):
        row = 0 if turns[0] else int(turns.argmax())
        raise DataError(
            f"rollout {row}: got {turns[row]} redrawn turns, expected at most one, and none in the"
            " first rollout."
        )
    return np.maximum.accumulate(np.where(turns == 0, np.arange(len(turns)), 0))


def credited_replies(
    redrawn: Indices, acted: Flags, reward: Floats, agent: int, *, compares_draws: bool
) -> CreditedReplies:
    """Return the replies from which an agent learns, and their rewards.

    Parameters
    ----------
    redrawn
        As in :func:`original_rows`.
    acted
        The steps in which the agent replied, bool[N, T].
    reward
        The agent's reward in each rollout, float[N].
    agent
        The agent's index.
    compares_draws
        If True, the replies are all draws of the agent's turns, each with its rollout's reward.
        If False, they are those of the originals, each with the mean reward of the rollouts that
        share it: other agents' redrawn turns average out the noise after a reply.
    """
    original = original_rows(redrawn)
    is_original = original == np.arange(len(original))
    if compares_draws:
        row, step = np.nonzero(acted & (is_original[:, None] | (redrawn == agent)))
        return CreditedReplies(row, step, original[row], reward[row].astype(np.float64))
    row, step = np.nonzero(acted & is_original[:, None])
    # Rollouts redrawn at a step share the other agents' replies up to that step.
    last_shared = np.where(is_original, redrawn.shape[1], (redrawn != NOT_REDRAWN).argmax(axis=1))
    shares = (original == row[:, None]) & (last_shared >= step[:, None])
    return CreditedReplies(row, step, row, shares @ reward.astype(np.float64) / shares.sum(axis=1))


def check_redraws(field: str, redraws: Mapping[str, int], models: Mapping[str, str]) -> None:
    """Check the numbers of redraws by agent.

    Parameters
    ----------
    field
        The parameter's name, for errors.
    redraws
        The number of alternatives to each turn of an agent, by name.
    models
        The model of each agent that learns.

    Raises
    ------
    ParameterError
        If an agent does not learn, or agents of one model differ in their numbers.
    """
    for agent in redraws:
        if agent not in models:
            raise ParameterError(
                f"{field}: got {agent!r}, expected agents that learn:"
                f" {', '.join(models)}.{nearest(agent, models)}"
            )
    counts: dict[str, set[int]] = {}
    for agent, model in models.items():
        counts.setdefault(model, set()).add(redraws.get(agent, 0))
    for model, numbers in counts.items():
        if redraws and len(numbers) > 1:
            raise ParameterError(
                f"{field}: got {sorted(numbers)} redraws for agents of the model group {model!r},"
                " expected the same number: a step weights all replies equally."
            )
