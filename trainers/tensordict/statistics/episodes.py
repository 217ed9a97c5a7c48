"""Statistics of episodes, decisions and policies, for training and tests.

K episodes, A agents, C channels, P positions, S symbols. Standard deviations are the population's.
"""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

_DECISION_NAMES = (
    "accuracy",
    "std_accuracy",
    "mean_datapoint_accuracy",
    "std_datapoint_accuracy",
    "worst_datapoint_accuracy",
    "decided_fraction",
)
_WITH_SPREAD = ("message_entropy", "largest_message_probability", "decision_entropy")


def episode_statistics(
    length: Tensor, reward: Tensor
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Measure K > 0 finished episodes by steps ``[K]`` and summed rewards ``[K, A]``.

    Returns ``mean_episode_length`` and ``std_episode_length``; and by agent, ``[A]``,
    ``mean_episode_reward`` and ``worst_episode_reward``, the smallest.
    """
    steps = length.double()
    stats = {
        "mean_episode_length": float(steps.mean()),
        "std_episode_length": float(steps.std(correction=0)),
    }
    summed = reward.double()
    return stats, {
        "mean_episode_reward": summed.mean(0),
        "worst_episode_reward": summed.min(0).values,
    }


def decision_statistics(decision: Tensor, y: Tensor, datapoint_id: Tensor) -> dict[str, float]:
    """Measure a verifier's decisions; undecided counts as wrong.

    ``decision``, ``[K]``, K > 0, is 0, 1, or 2 for none; ``y``, ``[K]``, the correct decision.
    Returns ``accuracy``, ``std_accuracy``, ``decided_fraction``; and of the datapoints' shares of
    correct episodes, each datapoint counting once: ``mean_datapoint_accuracy``,
    ``std_datapoint_accuracy`` and ``worst_datapoint_accuracy``, the lowest.
    """
    right = (decision == y).double()
    _, which, count = datapoint_id.unique(  # type: ignore[no-untyped-call] # of torch
        return_inverse=True, return_counts=True
    )
    by_datapoint = torch.zeros(len(count), dtype=torch.float64, device=right.device)
    by_datapoint = by_datapoint.index_add_(0, which, right) / count
    numbers = torch.stack(
        [
            right.mean(),
            right.std(correction=0),
            by_datapoint.mean(),
            by_datapoint.std(correction=0),
            by_datapoint.min(),
            (decision < 2).double().mean(),
        ]
    )
    return dict(zip(_DECISION_NAMES, numbers.tolist(), strict=True))


class PolicyMeasures:
    """Measures of policies and critics in frames, summed over any number of batches.

    Messages count once for each channel in which an agent is active, their entropy being summed
    over positions; decisions where they are possible; values where an agent acts.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}

    def add(self, frames: TensorDictBase, acting: Tensor, *, with_values: bool = False) -> None:
        """Add frames ``[*B]``; ``acting``, bool ``[*B, A]``, selects the counted agents.

        Uses ``message_logits`` [*B, A, C, P, S] and ``decision_logits`` [*B, A, 3] under
        ``agents``, if present; −inf marks impossible actions.
        """
        agents = frames.get("agents")
        logits = agents.get("message_logits", None)
        if logits is not None:
            log_prob = torch.log_softmax(logits, dim=-1)  # [*B, A, C, P, S]
            active = agents.get("active") & acting.unsqueeze(-1)  # [*B, A, C]
            self._add("message_entropy", _entropy(log_prob).sum(-1), active)
            largest = log_prob.amax(-1).exp().mean(-1)  # over positions
            self._add("largest_message_probability", largest, active)
        logits = agents.get("decision_logits", None)
        if logits is not None:
            entropy = categorical_entropy(logits)
            self._add("decision_entropy", entropy, agents.get("can_decide") & acting)
        if with_values and "value" in agents.keys():  # noqa: SIM118 -- no mapping
            self._add("mean_value", agents.get("value"), acting)

    def summary(self) -> dict[str, Tensor]:
        """Return means and, where defined, ``std_``, ``[A]`` each; 0 for agents without samples.

        The standard deviation is that between the messages, or decisions, of one agent.
        """
        count = {name: counted.clamp(min=1) for name, counted in self._counts.items()}
        mean = {name: total / count[name] for name, total in self._sums.items()}
        spread = {
            f"std_{name}": (total / count[name] - mean[name].square()).clamp(min=0).sqrt()
            for name, total in self._squares.items()
        }
        return {name: numbers.float() for name, numbers in (mean | spread).items()}

    def _add(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Sum values [*B, A] or [*B, A, C] over a mask of their shape, for each agent."""
        if name in ("message_entropy", "largest_message_probability"):
            values, mask = values.flatten(0, -3), mask.flatten(0, -3)  # [N, A, C]
            dims: tuple[int, ...] = (0, 2)
        else:
            values, mask, dims = values.flatten(0, -2), mask.flatten(0, -2), (0,)  # [N, A]
        counted = torch.where(mask, values, 0.0)
        sums = [(self._sums, counted.sum(dims, dtype=torch.float64))]
        sums.append((self._counts, mask.sum(dims)))
        if name in _WITH_SPREAD:
            sums.append((self._squares, counted.double().square().sum(dims)))
        for totals, total in sums:
            totals[name] = totals[name] + total if name in totals else total


def categorical_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy (nats) over the last dimension; −inf marks impossible values."""
    return _entropy(torch.log_softmax(logits, dim=-1))


def _entropy(log_prob: Tensor) -> Tensor:
    return -(log_prob.exp() * log_prob.clamp(min=-1e30)).sum(-1)
