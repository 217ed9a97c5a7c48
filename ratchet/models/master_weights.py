"""Float32 copies of weights that compute in bfloat16 or float16, for their optimizer.

A bfloat16 weight has 8 significant bits: at usual learning rates most updates are smaller than half
of its last one, and adding them changes nothing (Micikevicius et al. 2018, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class MasterWeights:
    """The weights that an optimizer updates, and rounding them to those that compute.

    A float32 weight is its own master.

    Attributes
    ----------
    weights
        The masters, float32, in the order of the computing weights.
    """

    def __init__(self, computing: Sequence[nn.Parameter]) -> None:
        self._computing = list(computing)
        self.weights = [
            each if each.dtype == torch.float32 else nn.Parameter(each.detach().float())
            for each in computing
        ]

    @property
    def copies(self) -> dict[int, nn.Parameter]:
        """The masters that are copies, by the position of their weight."""
        pairs = enumerate(zip(self.weights, self._computing, strict=True))
        return {index: master for index, (master, each) in pairs if master is not each}

    def take_gradients(self) -> None:
        """Move the gradients of the computing weights to their masters, where they are added."""
        for index, master in self.copies.items():
            gradient = self._computing[index].grad
            if gradient is not None:
                self._computing[index].grad = None
                master.grad = gradient.float() if master.grad is None else master.grad + gradient

    @torch.no_grad()
    def round(self) -> None:
        """Set the computing weights to their rounded masters, whose gradients are released."""
        copies = self.copies
        if copies:
            computing: list[Tensor] = [self._computing[index] for index in copies]
            torch._foreach_copy_(computing, list(copies.values()))
        for master in copies.values():
            master.grad = None

    @torch.no_grad()
    def read(self, masters: dict[int, Tensor] | None = None) -> None:
        """Set the masters to given ones, or to the computing weights, of any floating type."""
        for index, master in self.copies.items():
            master.copy_(self._computing[index] if masters is None else masters[index])
