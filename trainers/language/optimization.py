"""Optimizer of language trainers: AdamW with a learning-rate schedule and clipping."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ratchet.models.master_weights import MasterWeights
from ratchet.parameters.language import LanguageOptimizerParameters
from trainers.language.learning_rate import LearningRate


class LanguageOptimizer:
    """AdamW with a warm-up over steps and a schedule over iterations.

    Updates and moments are float32 for any type of the weights.
    """

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], settings: LanguageOptimizerParameters
    ) -> None:
        self._parameters, self._settings = list(parameters), settings
        self._rate = LearningRate(settings)
        self._done = 0

    @cached_property
    def _masters(self) -> MasterWeights:
        """The float32 weights; created when needed, since sampling needs none."""
        return MasterWeights(self._parameters)

    @cached_property
    def _adam(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(
            self._masters.weights,
            lr=self._settings.lr,
            betas=(self._settings.beta1, self._settings.beta2),
            eps=self._settings.eps,
            weight_decay=self._settings.weight_decay,
            fused=True,
        )

    def set_progress(self, iteration: int, num_iterations: int) -> None:
        """Set the current iteration, from 0, and the number of iterations."""
        self._rate.set_progress(iteration, num_iterations)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self._rate.after(self._done)

    def zero_grad(self) -> None:
        """Reset the gradients."""
        for parameter in (*self._parameters, *self._masters.weights):
            parameter.grad = None

    def take_gradients(self) -> None:
        """Add the gradients of rounded weights in float32, before those of further rows."""
        self._masters.take_gradients()

    def step(self) -> Tensor:
        """Take a step with clipped gradients; return their norm before clipping."""
        self.take_gradients()
        masters = self._masters
        norm, max_norm = self._norm(), self._settings.max_grad_norm
        torch.nn.utils.clip_grads_with_norm_(masters.weights, max_norm, norm)
        for group in self._adam.param_groups:
            group["lr"] = self.lr
        self._adam.step()
        masters.round()
        self._done += 1
        return norm.detach()

    def _norm(self) -> Tensor:
        """Return the norm of all gradients."""
        gradients = [p.grad for p in self._masters.weights if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def state_dict(self) -> dict[str, Any]:
        """Return the state other than the weights: moments, finished steps, and any copied masters.

        Masters are float32 weights of which the model has rounded ones.
        """
        if "_adam" not in vars(self):  # before the first step
            return {"moments": {}, "done": self._done}
        state = {"moments": self._adam.state_dict()["state"], "done": self._done}
        masters = {index: each.detach() for index, each in self._masters.copies.items()}
        return {**state, "masters": masters} if masters else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict` after the model's weights.

        States of earlier versions have no masters, and moments of the weights' type, which become
        float32.
        """
        self._masters.read(state.get("masters"))
        moments = copy.deepcopy(state["moments"])  # steps change them in place
        self._adam.load_state_dict({**self._adam.state_dict(), "state": moments})
        self._done = int(state["done"])

    def read_weights(self) -> None:
        """Continue from the model's weights after they were replaced."""
        if "_masters" in vars(self):
            self._masters.read()
