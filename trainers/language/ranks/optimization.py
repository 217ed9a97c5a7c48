"""The optimizer of a model whose weights lie in several processes: each changes its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ratchet.language_models.local.sharding import cut, gather, own_share
from ratchet.parameters.language import LanguageOptimizerParameters
from trainers.language.optimization import LanguageOptimizer


class ShardedOptimizer(LanguageOptimizer):
    """:class:`LanguageOptimizer` over this process's shares, with the norm of all of them.

    Parameters that are not shared, such as a value head, are the same in all processes: their
    gradients are summed here. States are those of one process.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], given: LanguageOptimizerParameters
    ) -> None:
        self._whole = list(parameters)
        super().__init__([nn.Parameter(own_share(p)) for p in self._whole], given)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        super().zero_grad()
        for parameter in self._whole:
            parameter.grad = None

    def step(self) -> Tensor:
        """Follow the gradients, clipped by the norm of all; return it."""
        for share, parameter in zip(self._parameters, self._whole, strict=True):
            if parameter.grad is None:
                continue
            share.grad = own_share(parameter.grad)
            if not isinstance(parameter, DTensor):
                dist.all_reduce(share.grad)
        return super().step()

    def _norm(self) -> Tensor:
        norms = {True: [torch.zeros(())], False: [torch.zeros(())]}
        for share, parameter in zip(self._parameters, self._whole, strict=True):
            if share.grad is not None:
                norms[isinstance(parameter, DTensor)].append(share.grad.float().norm().cpu())
        shared, own = (torch.stack(norms[kind]).double().square().sum() for kind in (True, False))
        total = shared.to(self._parameters[0].device)
        dist.all_reduce(total)
        return (total + own.to(total.device)).sqrt().float()

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, on the CPU; all processes take part."""
        state = super().state_dict()
        return {**state, "moments": self._moments(state["moments"], _gathered)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from this process's share of a whole state."""
        super().load_state_dict({**state, "moments": self._moments(state["moments"], cut)})

    def _moments(self, moments: Mapping[int, Mapping[str, Any]], change: Any) -> dict[int, Any]:  # noqa: ANN401 -- cut or gather
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
