"""Optimizer of language trainers: AdamW with a learning-rate schedule and clipping."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ratchet.parameters.language import LanguageOptimizerParameters
from trainers.language.learning_rate import LearningRate


class LanguageOptimizer:
    """AdamW with a warm-up over steps and a schedule over iterations."""

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], given: LanguageOptimizerParameters
    ) -> None:
        self._parameters, self._given = list(parameters), given
        self._adam = torch.optim.AdamW(
            self._parameters,
            lr=given.lr,
            betas=(given.beta1, given.beta2),
            eps=given.eps,
            weight_decay=given.weight_decay,
            fused=True,
        )
        self._rate = LearningRate(given)
        self._done = 0

    def set_progress(self, iteration: int, num_iterations: int) -> None:
        """Set the current iteration, from 0, and the number of iterations."""
        self._rate.set_progress(iteration, num_iterations)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self._rate.after(self._done)

    def zero_grad(self) -> None:
        """Reset the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def step(self) -> Tensor:
        """Take a step with clipped gradients; return their norm before clipping."""
        norm, most = self._norm(), self._given.max_grad_norm
        torch.nn.utils.clip_grads_with_norm_(self._parameters, most, norm)
        for group in self._adam.param_groups:
            group["lr"] = self.lr
        self._adam.step()
        self._done += 1
        return norm.detach()

    def _norm(self) -> Tensor:
        """Return the norm of all gradients."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def state_dict(self) -> dict[str, Any]:
        """Return the state other than the parameters: moments and number of finished steps."""
        return {"moments": self._adam.state_dict()["state"], "done": self._done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        moments = copy.deepcopy(state["moments"])  # steps change them in place
        self._adam.load_state_dict({**self._adam.state_dict(), "state": moments})
        self._done = int(state["done"])
