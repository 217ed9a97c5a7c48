"""Optimizer of a model sharded over several processes: each updates its shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ratchet.language_models.local.sharding import gather, local_shard, shard_like
from ratchet.parameters.language import LanguageOptimizerParameters
from trainers.language.optimization import LanguageOptimizer


class ShardedOptimizer(LanguageOptimizer):
    """:class:`LanguageOptimizer` over this process's shards, with the norm of all of them.

    Parameters that are not sharded, such as a value head, are the same in all processes: their
    gradients are summed here. States are those of one process.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], given: LanguageOptimizerParameters
    ) -> None:
        self._whole = list(parameters)
        super().__init__([nn.Parameter(local_shard(p)) for p in self._whole], given)

    def zero_grad(self) -> None:
        """Reset the gradients."""
        super().zero_grad()
        for parameter in self._whole:
            parameter.grad = None

    def step(self) -> Tensor:
        """Take a step with gradients clipped by the global norm; return the norm."""
        for share, parameter in zip(self._parameters, self._whole, strict=True):
            if parameter.grad is None:
                continue
            share.grad = local_shard(parameter.grad)
            if not isinstance(parameter, DTensor):
                dist.all_reduce(share.grad)
        return super().step()

    def _norm(self) -> Tensor:
        gradients: dict[bool, list[Tensor]] = {True: [], False: []}
        for share, parameter in zip(self._parameters, self._whole, strict=True):
            if share.grad is not None:
                gradients[isinstance(parameter, DTensor)].append(share.grad)
        device = self._parameters[0].device
        of_shares, of_others = (
            torch.nn.utils.get_total_norm(gradients[kind]).to(device).double().square()
            for kind in (True, False)
        )
        dist.all_reduce(of_shares)
        return (of_shares + of_others).sqrt().float()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, on the CPU; all processes take part."""
        state = super().state_dict()
        return {**state, "moments": self._moments(state["moments"], _gathered)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore this process's shard of a complete state."""
        super().load_state_dict({**state, "moments": self._moments(state["moments"], shard_like)})

    def _moments(
        self,
        moments: Mapping[int, Mapping[str, Any]],
        change: Callable[[Tensor, Tensor], Tensor],
    ) -> dict[int, dict[str, Any]]:
        return {
            place: {
                name: change(value, self._whole[place])
                if isinstance(value, Tensor) and value.ndim
                else value
                for name, value in of_one.items()
            }
            for place, of_one in moments.items()
        }


def _gathered(share: Tensor, like: Tensor) -> Tensor:
    return gather(share, like).cpu()
