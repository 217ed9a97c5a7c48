"""A batch read part by part, for models and batches that do not fit into memory together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ratchet.language_models.service.training.optimization import Optimization


class PartLoss(Protocol):
    """A batch's loss as the sum of what its parts contribute."""

    def __call__(
        self, places: list[int], of: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """Return what the examples in these places contribute to the loss of the batch ``of``."""
        ...


def follow(
    optimization: Optimization,
    parameters: Sequence[torch.nn.Parameter],
    loss: PartLoss,
    batch: list[int],
    size: int,
) -> tuple[float, dict[str, float]]:
    """Make one step along the gradient of a batch's loss, at most ``size`` examples in memory.

    Returns the loss and the mean of each figure. However a batch is cut, the step is the same but
    for rounding; uncut it is so to the bit.
    """
    if size >= len(batch):
        value, figures = loss(batch)
        return optimization.step(value), figures
    total, mean = 0.0, dict[str, float]()
    gradients = [torch.zeros_like(parameter) for parameter in parameters]
    for start in range(0, len(batch), size):
        places = batch[start : start + size]
        part, figures = loss(places, of=batch)
        found = torch.autograd.grad(part, parameters, materialize_grads=True)
        for gradient, more in zip(gradients, found, strict=True):
            gradient += more
        total += float(part.detach())
        for name, figure in figures.items():
            mean[name] = mean.get(name, 0.0) + figure * len(places) / len(batch)
    optimization.step(_with_gradients(parameters, gradients))
    return total, mean


def _with_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return a value whose gradient this is: what is asked to be followed is a loss."""
    products = (
        (parameter * gradient).sum()
        for parameter, gradient in zip(parameters, gradients, strict=True)
    )
    return torch.stack(list(products)).sum()
