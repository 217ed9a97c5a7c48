"""What finished rollouts came to: rewards, decisions, whether they were right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ratchet.errors import ArrayShapeError, UnknownNameError, nearest
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.spec import NO_DECISION

Bools: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


def episode_rewards(rollouts: NestedArrayDict) -> Floats:
    """Sum each agent's rewards over its episode, float64 [N, A]."""
    total: Floats = rollouts.array(("agents", "reward")).sum(axis=1, dtype=np.float64)
    return total


def episode_lengths(rollouts: NestedArrayDict) -> Ints:
    """Count the steps that were played, int64 [N]."""
    lengths: Ints = (~rollouts.array("padding")).sum(axis=1)
    return lengths


def final_decisions(rollouts: NestedArrayDict, agent_index: int) -> Ints:
    """Return an agent's last decision that is one, int64 [N]; 2 where it made none."""
    decisions = rollouts.array(("agents", "decision"))[:, :, agent_index]
    num_rollouts, num_steps = decisions.shape
    final = np.full(num_rollouts, NO_DECISION, dtype=np.int64)
    for step in range(num_steps):
        made = decisions[:, step] != NO_DECISION
        final[made] = decisions[made, step]
    return final


def acceptance(rollouts: NestedArrayDict, agent_index: int) -> Floats:
    """Return how likely an agent finally says that 1 is right, float64 [N]; 0.5 if undecided."""
    chance = np.full(len(rollouts), 0.5)
    decisions = rollouts.array(("agents", "decision"))[:, :, agent_index]
    confidence = rollouts.array(("agents", "confidence"))[:, :, agent_index]
    for step in range(decisions.shape[1]):
        made = decisions[:, step] != NO_DECISION
        signed = np.where(decisions[:, step] == 1, 1, -1) * confidence[:, step]
        chance[made] = (1 + signed[made]) / 2
    return chance


def were_correct(rollouts: NestedArrayDict, agent_index: int) -> Bools:
    """Return where an agent's final decision is the true label, bool [N]."""
    correct: Bools = final_decisions(rollouts, agent_index) == rollouts.array("y")
    return correct


def datapoint_accuracies(rollouts: NestedArrayDict, agent_index: int) -> tuple[Ints, Floats]:
    """Return the datapoints played, ascending int64 [D], and an agent's accuracy on each [D]."""
    correct = were_correct(rollouts, agent_index)
    ids, place = np.unique(rollouts.array("datapoint_id"), return_inverse=True)
    right = np.bincount(place, weights=correct, minlength=len(ids))
    return ids, right / np.bincount(place, minlength=len(ids)).clip(min=1)


def always_failed(rollouts: NestedArrayDict, agent_index: int) -> Bools:
    """Return which rollouts are of a datapoint on which the agent was never right, bool [N]."""
    ids, accuracies = datapoint_accuracies(rollouts, agent_index)
    failed: Bools = np.isin(rollouts.array("datapoint_id"), ids[accuracies == 0])
    return failed


def pass_rates_within(
    rollouts: NestedArrayDict, agent_index: int, lowest: float, highest: float
) -> Bools:
    """Return which rollouts are of a datapoint whose accuracy lies within both bounds, bool [N]."""
    ids, accuracies = datapoint_accuracies(rollouts, agent_index)
    within = (accuracies >= lowest) & (accuracies <= highest)
    kept: Bools = np.isin(rollouts.array("datapoint_id"), ids[within])
    return kept


def check_agents(rollouts: NestedArrayDict, agent_names: Sequence[str]) -> None:
    """Check that the rollouts are of as many agents as there are names.

    Raises
    ------
    ArrayShapeError
        If not.
    """
    shape = rollouts.array(("agents", "reward")).shape
    expected = (*shape[:2], len(agent_names))
    if rollouts.batch_dims != 1 or shape != expected:
        raise ArrayShapeError(
            f"agents.reward: got shape {shape} in rollouts of batch size {rollouts.batch_size},"
            f" expected (N, T, {len(agent_names)}) for the agents {list(agent_names)}."
        )


def verifier_index(agent_names: Sequence[str], verifier_name: str | None = None) -> int:
    """Find the place, among agent dimensions, of the agent whose decisions count.

    It is the one with "verifier" in its name if no name is given.

    Raises
    ------
    UnknownNameError
        If there is none of that name, or not exactly one with "verifier" in its name.
    """
    names = list(agent_names)
    if verifier_name is None:
        verifiers = [name for name in names if "verifier" in name]
        if len(verifiers) != 1:
            raise UnknownNameError(
                f"verifier: {len(verifiers)} of the agents {names} have 'verifier' in their name,"
                " expected one; say which with verifier_name."
            )
        verifier_name = verifiers[0]
    if verifier_name not in names:
        raise UnknownNameError(
            f"verifier: unknown agent {verifier_name!r}.{nearest(verifier_name, names)}"
        )
    return names.index(verifier_name)
