"""Norms of gradients, for each agent and each of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainers.callbacks.base import Callback, Moment
from trainers.callbacks.registry import register_callback
from trainers.results import Metrics

if TYPE_CHECKING:
    from ratchet.parameters.base import SubParameters
    from trainers.tensordict.base import TensorDictTrainer

NORM = "grad_norm"


@register_callback("gradient_statistics")
class GradientStatistics(Callback):
    """Adds ``AGENT.PART.grad_norm`` and ``AGENT.grad_norm`` to an iteration's metrics.

    The Euclidean norm before clipping, averaged over the minibatches with a gradient; omitted
    without gradients, e.g. for frozen agents. Parts are those of learning rates: ``body``, ``gnn``,
    ``policy``, ``value`` and ``solo``.
    """

    plays_text = False
    trainer: TensorDictTrainer

    def __init__(self, parameters: SubParameters, trainer: TensorDictTrainer) -> None:
        super().__init__(parameters, trainer)
        rl, alone = trainer.hyper_params.rl, trainer.trainer_type == "solo_agent"
        self._groups = trainer.combined_agents.parameter_groups(rl, solo=alone)
        self._seen: dict[str, list[Tensor]] = {}

    def begin_iteration(self, now: Moment) -> None:
        """Reset the norms."""
        self._seen = {}

    @torch.no_grad()
    def after_loss(self, now: Moment, losses: Mapping[str, Tensor]) -> None:
        """Record the norms of a minibatch's gradients, without changing them."""
        of_agents: dict[str, list[Tensor]] = {}
        for group in self._groups:
            gradients = [param.grad for param in group.params if param.grad is not None]
            if gradients:
                norm = _norm(torch.linalg.vector_norm(gradient) for gradient in gradients)
                self._seen.setdefault(group.name, []).append(norm)
                of_agents.setdefault(group.agent, []).append(norm)
        for agent, norms in of_agents.items():
            self._seen.setdefault(agent, []).append(_norm(norms))

    def end_iteration(self, now: Moment) -> Metrics:
        """Average over minibatches."""
        means = {name: torch.stack(norms).mean() for name, norms in self._seen.items()}
        return {f"{name}.{NORM}": float(mean) for name, mean in means.items()}


def _norm(parts: Iterable[Tensor]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(torch.stack(list(parts)))
    return norm
