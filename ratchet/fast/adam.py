"""Torch's Adam and gradient clipping, without torch's checks at every step.

With small networks these checks take longer than the arithmetic. Adam calls the same kernel with
the same values, bit for bit; the norm of all gradients is rounded once instead of twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast, overload

import torch
from torch import Tensor


class FusedAdam(torch.optim.Adam):
    """Adam (Kingma & Ba 2015) with torch's fused kernel; no weight decay, no AMSGrad.

    ``lr`` is the learning rate of groups that set none, ``eps`` the constant added to the
    denominator.
    """

    def __init__(self, params: Iterable[Any], lr: float, eps: float = 1e-8) -> None:
        super().__init__(params, lr=lr, eps=eps, fused=True)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step for the parameters with a gradient, in one call per rate or tensor of one."""
        if closure is not None:
            return cast(float, super().step(closure))
        by_rate: dict[tuple[Any, ...], tuple[list[Tensor], ...]] = {}
        for group in self.param_groups:
            rate = (group.get("lr_on_device", group["lr"]), *group["betas"], group["eps"])
            lists = by_rate.setdefault(rate, ([], [], [], [], [], []))
            self._init_group(group, *lists)  # type: ignore[no-untyped-call] # of torch
        for (lr, beta1, beta2, eps), lists in by_rate.items():
            if not lists[0]:
                continue
            torch._foreach_add_(lists[-1], 1)
            torch._fused_adam_(
                *lists,
                lr=lr,
                beta1=beta1,
                beta2=beta2,
                weight_decay=0.0,
                eps=eps,
                amsgrad=False,
                maximize=False,
            )
        return None

    step.hooked = True  # type: ignore[attr-defined] # otherwise torch wraps it for its profiler


@torch.no_grad()
def clip_gradients(params: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint 2-norm is at most ``max_norm``.

    Like :func:`torch.nn.utils.clip_grad_norm_`, for parameters on one device. Returns the norm
    before clipping, f32 [].
    """
    gradients = [param.grad for param in params if param.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch._C._nn.flatten_dense_tensors(gradients))
    # NaN is propagated, so that it shows; no synchronisation with devices
    if not norm.is_cpu or not norm + 1e-6 <= max_norm:
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp_(max=1.0))
    return norm
