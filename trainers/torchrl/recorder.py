"""Collects the metrics a TorchRL trainer logs, with one value per metric and iteration.

The library logs key by key, every few frames; here all values are included, and the tracker gets an
iteration's metrics in one call.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torchrl.trainers import Trainer

    from trainers.results import Metrics

logger = logging.getLogger(__name__)

_RETURNS = ("reward_sum", "episode_reward")  # names in configurations and of the transform


def begin_iteration(trainer: Trainer) -> None:
    """Delete logged values except the last one of each metric, which hooks may read."""
    for name, values in trainer._log_dict.items():
        trainer._log_dict[name] = values[-1:]


def take_metrics(trainer: Trainer, before: dict[str, int]) -> Metrics:
    """Return the metrics that were logged in an iteration.

    For counts (integers) the last value, for others the mean; tensors with dimensions are
    averaged.

    Parameters
    ----------
    before
        The number of values of each metric at the start of the iteration, see
        :func:`count_values`.
    """
    metrics = {}
    for name, values in trainer._log_dict.items():
        new = values[before.get(name, 0) :]
        value = reduce_values(new) if new else None
        if value is not None:
            metrics[name] = value
        elif new:
            logger.warning("metric %r is %r, no number: it is not recorded", name, new[-1])
    return metrics


def count_values(trainer: Trainer) -> dict[str, int]:
    """Count the logged values of each metric."""
    return {name: len(values) for name, values in trainer._log_dict.items()}


def finished_returns(batch: TensorDictBase) -> list[float]:
    """List returns of the episodes that end in a batch, if the environment sums rewards.

    For groups of agents, the mean over the group.
    """
    after = batch.get("next")
    for key in after.keys(include_nested=True, leaves_only=True):
        group = () if isinstance(key, str) else key[:-1]
        if (key if isinstance(key, str) else key[-1]) not in _RETURNS:
            continue
        total, done = after.get(key), after.get("done", None)
        if done is not None and group:
            total = total.flatten(done.ndim - 1).mean(-1, keepdim=True)
        if done is not None and total.shape == done.shape:
            returns: list[float] = total[done].tolist()
            return returns
    return []


def reduce_values(values: Sequence[Any]) -> float | None:
    """Reduce logged values to one number; None if they are not numbers."""
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return float(values[-1])
    numbers = [_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    return float(np.mean(known)) if len(known) == len(numbers) else None


def _number(value: object) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value.detach().to(torch.float64).mean()) if value.numel() else None
    if isinstance(value, np.ndarray):
        return float(value.mean()) if value.size and value.dtype.kind in "biuf" else None
    if isinstance(value, Number | bool | np.generic) and not isinstance(value, complex):
        return float(value)  # type: ignore[arg-type] # a real number
    return None
