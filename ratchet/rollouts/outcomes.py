"""Outcomes of rollouts and statistics over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ratchet.errors import ArrayShapeError, UnknownNameError, nearest
from ratchet.rollouts.nested_array_dict import NestedArrayDict
from ratchet.rollouts.specs import NO_DECISION

Bools: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

ACCEPT = 1


def episode_rewards(rollouts: NestedArrayDict) -> Floats:
    """Sum each agent's rewards over its episode, float64 [N, A]."""
    total: Floats = rollouts.array(("agents", "reward")).sum(axis=1, dtype=np.float64)
    return total


def episode_lengths(rollouts: NestedArrayDict) -> Ints:
    """Count the steps that were played, int64 [N]."""
    lengths: Ints = (~rollouts.array("padding")).sum(axis=1)
    return lengths


def final_decisions(rollouts: NestedArrayDict, agent_index: int) -> Ints:
    """Return an agent's last actual decision, int64 [N]; 2 if it never decided."""
    decisions = rollouts.array(("agents", "decision"))[:, :, agent_index]
    num_rollouts, num_steps = decisions.shape
    final = np.full(num_rollouts, NO_DECISION, dtype=np.int64)
    for step in range(num_steps):
        has_decided = decisions[:, step] != NO_DECISION
        final[has_decided] = decisions[has_decided, step]
    return final


def acceptance(rollouts: NestedArrayDict, agent_index: int) -> Floats:
    """Return an agent's final probability of 1, float64 [N]; 0.5 if undecided."""
    chance = np.full(len(rollouts), 0.5)
    decisions = rollouts.array(("agents", "decision"))[:, :, agent_index]
    confidence = rollouts.array(("agents", "confidence"))[:, :, agent_index]
    for step in range(decisions.shape[1]):
        has_decided = decisions[:, step] != NO_DECISION
        signed = np.where(decisions[:, step] == 1, 1, -1) * confidence[:, step]
        chance[has_decided] = (1 + signed[has_decided]) / 2
    return chance


def were_correct(rollouts: NestedArrayDict, agent_index: int) -> Bools:
    """Return where an agent's final decision is the true label, bool [N]."""
    correct: Bools = final_decisions(rollouts, agent_index) == rollouts.array("y")
    return correct


def datapoint_accuracies(rollouts: NestedArrayDict, agent_index: int) -> tuple[Ints, Floats]:
    """Return the datapoints played, ascending int64 [D], and an agent's accuracy on each [D]."""
    correct = were_correct(rollouts, agent_index)
    ids, datapoint_index = np.unique(rollouts.array("datapoint_id"), return_inverse=True)
    right = np.bincount(datapoint_index, weights=correct, minlength=len(ids))
    return ids, right / np.bincount(datapoint_index, minlength=len(ids)).clip(min=1)


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
    in_bounds: Bools = np.isin(rollouts.array("datapoint_id"), ids[within])
    return in_bounds


def check_agents(rollouts: NestedArrayDict, agent_names: Sequence[str]) -> None:
    """Check that the rollouts are of as many agents as there are names."""
    shape = rollouts.array(("agents", "reward")).shape
    expected = (*shape[:2], len(agent_names))
    if rollouts.batch_dims != 1 or shape != expected:
        raise ArrayShapeError(
            f"agents.reward: got shape {shape} in rollouts of batch size {rollouts.batch_size},"
            f" expected (N, T, {len(agent_names)}) for the agents {list(agent_names)}."
        )


def verifier_index(agent_names: Sequence[str], verifier_name: str | None = None) -> int:
    """Return the index, in agent dimensions, of the agent whose decisions count.

    It is the one with "verifier" in its name if no name is given.
    """
    names = list(agent_names)
    if verifier_name is None:
        verifiers = [name for name in names if "verifier" in name]
        if len(verifiers) != 1:
            raise UnknownNameError(
                f"verifier: {len(verifiers)} of the agents {names} have 'verifier' in their name,"
                " expected one; set verifier_name."
            )
        verifier_name = verifiers[0]
    if verifier_name not in names:
        raise UnknownNameError(
            f"verifier: unknown agent {verifier_name!r}.{nearest(verifier_name, names)}"
        )
    return names.index(verifier_name)


def rollout_statistics(
    rollouts: NestedArrayDict, agent_names: Sequence[str], verifier_name: str, *, prefix: str = ""
) -> dict[str, float]:
    """Compute the statistics of rollouts.

    Parameters
    ----------
    rollouts
        Batch [N], with the layout of :func:`~ratchet.rollouts.specs.rollout_spec`.
    agent_names
        In the order of agent dimensions.
    verifier_name
        The agent whose decisions count.
    prefix
        Prefix of all names, e.g. ``"test_"``.

    Returns
    -------
    dict
        For each agent, behind its name and a dot, ``mean_episode_reward``, ``std_episode_reward``
        and, as shares of its turns, ``retry_proportion`` (at least one retry),
        ``token_limit_proportion`` and ``invalid_proportion`` (no valid answer after all retries);
        as counts ``num_turns``, ``num_invalid_replies`` (discarded, or invalid after all retries),
        ``num_turns_without_reply`` and ``num_cut_off_replies``. For all: ``num_rollouts``,
        ``mean_`` and ``std_episode_length``; ``accuracy`` and ``std_accuracy``, where no decision
        counts as wrong; ``mean_decision`` and ``std_decision`` of the rollouts that were decided,
        and ``no_decision_proportion``; ``accuracy_class_0`` and ``_1``; ``precision`` and
        ``recall`` of accepting; ``worst_datapoint_accuracy``, the lowest share of correct rollouts
        of a datapoint, and the shares of datapoints with no correct rollout,
        ``always_failed_proportion``, only correct ones, ``always_solved_proportion``, and both
        kinds, ``sometimes_solved_proportion`` (0 if each was played once);
        ``rollouts_per_datapoint``, their mean. For decisions with a confidence,
        ``mean_confidence``, and ``brier_score``: the mean squared difference of the verifier's
        probability of 1 and the label, 0.25 if undecided. Standard deviations are of the
        population. 0/0 is NaN.
    """
    check_agents(rollouts, agent_names)
    stats = _agent_statistics(rollouts, agent_names)
    stats["num_rollouts"] = float(len(rollouts))
    lengths = episode_lengths(rollouts)
    stats["mean_episode_length"], stats["std_episode_length"] = _mean(lengths), _std(lengths)
    verifier = verifier_index(agent_names, verifier_name)
    stats |= _decision_statistics(rollouts, verifier)
    if ("agents", "confidence") in rollouts:
        chance = acceptance(rollouts, verifier)
        decided = final_decisions(rollouts, verifier) != NO_DECISION
        stats["mean_confidence"] = _mean(np.abs(2 * chance - 1)[decided])
        stats["brier_score"] = _mean((chance - rollouts.array("y")) ** 2)
    return {prefix + name: value for name, value in stats.items()}


def _agent_statistics(rollouts: NestedArrayDict, agent_names: Sequence[str]) -> dict[str, float]:
    rewards = episode_rewards(rollouts)
    turns = rollouts.array(("agents", "active")) & ~rollouts.array("padding")[..., None]
    events = {
        "retry_proportion": rollouts.array(("agents", "retry_count")) > 0,
        "token_limit_proportion": rollouts.array(("agents", "token_limit")),
        "invalid_proportion": ~rollouts.array(("agents", "valid")),
    }
    stats = {}
    for index, name in enumerate(agent_names):
        stats[f"{name}.mean_episode_reward"] = _mean(rewards[:, index])
        stats[f"{name}.std_episode_reward"] = _std(rewards[:, index])
        acted = turns[..., index]
        for event, happened in events.items():
            stats[f"{name}.{event}"] = _mean(happened[..., index][acted])
        retries, cut_off, invalid = (
            array[..., index][acted].sum()
            for array in (
                rollouts.array(("agents", "retry_count")),
                events["token_limit_proportion"],
                events["invalid_proportion"],
            )
        )
        stats[f"{name}.num_turns"] = float(acted.sum())
        stats[f"{name}.num_invalid_replies"] = float(retries + invalid)
        stats[f"{name}.num_turns_without_reply"] = float(invalid)
        stats[f"{name}.num_cut_off_replies"] = float(cut_off)
    return stats


def _decision_statistics(rollouts: NestedArrayDict, verifier: int) -> dict[str, float]:
    y = rollouts.array("y")
    decision = final_decisions(rollouts, verifier)
    correct = decision == y
    decided = decision != NO_DECISION
    _, by_datapoint = datapoint_accuracies(rollouts, verifier)
    return {
        "accuracy": _mean(correct),
        "std_accuracy": _std(correct),
        "mean_decision": _mean(decision[decided]),
        "std_decision": _std(decision[decided]),
        "no_decision_proportion": _mean(~decided),
        "accuracy_class_0": _mean(correct[y == 0]),
        "accuracy_class_1": _mean(correct[y == 1]),
        "precision": _mean(y[decision == ACCEPT] == 1),
        "recall": _mean(decision[y == 1] == ACCEPT),
        "worst_datapoint_accuracy": float(by_datapoint.min()) if len(by_datapoint) else np.nan,
        "always_failed_proportion": _mean(by_datapoint == 0),
        "always_solved_proportion": _mean(by_datapoint == 1),
        "sometimes_solved_proportion": _mean((by_datapoint > 0) & (by_datapoint < 1)),
        "rollouts_per_datapoint": len(y) / len(by_datapoint) if len(by_datapoint) else np.nan,
    }


def _mean(values: npt.NDArray[np.generic]) -> float:
    """Return the mean in float64, NaN of nothing, without NumPy's warning."""
    return float(values.astype(np.float64).mean()) if values.size else np.nan


def _std(values: npt.NDArray[np.generic]) -> float:
    return float(values.astype(np.float64).std()) if values.size else np.nan
