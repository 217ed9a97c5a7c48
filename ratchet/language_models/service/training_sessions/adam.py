"""Adam with decoupled weight decay, with all its figures given for each step.

Written out: the first use of torch's own imports its compiler, which takes longer than a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ratchet.language_models.training_service.interface import OptimizerSettings


class Adam:
    """The moments of some weights, and how often these were changed."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self.steps = 0

    @cached_property
    def means(self) -> list[Tensor]:
        """Of the gradients; made when first needed, since who only samples needs none."""
        return [torch.zeros_like(weight) for weight in self._weights]

    @cached_property
    def squares(self) -> list[Tensor]:
        """Of the gradients' squares."""
        return [torch.zeros_like(weight) for weight in self._weights]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], settings: OptimizerSettings) -> float:
        """Follow a gradient once; return its norm before it was cut."""
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        factor = 1.0
        if settings.max_grad_norm and float(norm) > settings.max_grad_norm:
            factor = settings.max_grad_norm / float(norm)
        self.steps += 1
        rate = settings.learning_rate
        size = rate / (1 - settings.beta1**self.steps)
        correction = (1 - settings.beta2**self.steps) ** 0.5
        states = zip(self._weights, gradients, self.means, self.squares, strict=True)
        for weight, gradient, mean, square in states:
            cut = gradient * factor
            weight.mul_(1 - rate * settings.weight_decay)
            mean.lerp_(cut, 1 - settings.beta1)
            square.mul_(settings.beta2).addcmul_(cut, cut, value=1 - settings.beta2)
            divisor = square.sqrt().div_(correction).add_(settings.eps)
            weight.addcdiv_(mean, divisor, value=-size)
        return float(norm)
