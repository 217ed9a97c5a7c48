"""Adam for language models (Kingma and Ba 2015, algorithm 1), written out once.

The first use of torch's own optimizers imports its compiler, which takes longer than a short job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

MAX_GRADIENT_NORM = 1.0
_EPSILON = 1e-8
_LAST_SHARE = 0.1


class Adam:
    """The moments of some weights, and the number of updates; decay is decoupled (AdamW)."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = list(weights)
        self.steps = 0

    @cached_property
    def means(self) -> list[Tensor]:
        """Means of the gradients; created at the first update, since sampling needs none."""
        return [torch.zeros_like(weight) for weight in self._weights]

    @cached_property
    def squares(self) -> list[Tensor]:
        """Means of the gradients' squares."""
        return [torch.zeros_like(weight) for weight in self._weights]

    @torch.no_grad()
    def step(
        self,
        gradients: Sequence[Tensor],
        *,
        learning_rate: float,
        beta1: float,
        beta2: float,
        eps: float = _EPSILON,
        weight_decay: float = 0.0,
    ) -> None:
        """Update the weights once; each step may have other settings."""
        self.steps += 1
        size = learning_rate / (1 - beta1**self.steps)
        correction = (1 - beta2**self.steps) ** 0.5
        if weight_decay:
            torch._foreach_mul_(self._weights, 1 - learning_rate * weight_decay)
        gradients = list(gradients)
        torch._foreach_lerp_(self.means, gradients, 1 - beta1)
        torch._foreach_mul_(self.squares, beta2)
        torch._foreach_addcmul_(self.squares, gradients, gradients, value=1 - beta2)
        divisors = torch._foreach_sqrt(self.squares)
        torch._foreach_div_(divisors, correction)
        torch._foreach_add_(divisors, eps)
        torch._foreach_addcdiv_(self._weights, self.means, divisors, value=-size)


class ScheduledAdam:
    """Adam with a linear warm-up, a linear decline to a tenth, and clipped gradients.

    The learning rate rises to ``learning_rate`` over ``warmup`` steps, then falls.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        learning_rate: float,
        steps: int,
        warmup: int,
    ) -> None:
        self._parameters = list(parameters)
        self._adam = Adam(self._parameters)
        self._learning_rate = learning_rate
        self._steps, self._warmup = steps, max(1, min(warmup, steps // 4))

    def step(self, loss: Tensor) -> float:
        """Follow the gradient of a loss once; return the loss."""
        self.follow(torch.autograd.grad(loss, self._parameters, materialize_grads=True))
        return float(loss.detach())

    def follow(self, gradients: Sequence[Tensor]) -> None:
        """Follow a gradient once, clipped to the norm :data:`MAX_GRADIENT_NORM`."""
        gradients = list(gradients)
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        clipping = (MAX_GRADIENT_NORM / (norm + _EPSILON)).clamp(max=1.0)
        done = self._adam.steps
        rise, fall = (done + 1) / self._warmup, 1 - done / self._steps
        rate = self._learning_rate * min(1.0, rise, max(_LAST_SHARE, fall))
        gradients = torch._foreach_mul(gradients, clipping)  # the step needs their memory
        self._adam.step(gradients, learning_rate=rate, beta1=0.9, beta2=0.98)
