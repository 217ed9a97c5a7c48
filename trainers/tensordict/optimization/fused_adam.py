"""Torch's Adam and gradient clipping, without torch's checks at every step.

With small networks torch's own wrappers take longer than the arithmetic. Adam calls the same kernel
with the same values, bit for bit; the norm of all gradients is rounded once instead of twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, cast, overload

import torch
from torch import Tensor

Rate = tuple[float, float, float, float]
"""Learning rate, β₁, β₂, ε."""


class FusedAdam(torch.optim.Adam):
    """Adam (Kingma & Ba 2015) with torch's fused kernel; no weight decay, no AMSGrad.

    ``lr`` is the learning rate of groups that set none, ``eps`` the constant added to the
    denominator.
    """

    def __init__(self, params: Iterable[Any], lr: float, eps: float = 1e-8) -> None:
        super().__init__(params, lr=lr, eps=eps, fused=True)
        self._known: _Moments | None = None

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step for the parameters with a gradient, in one call per learning rate."""
        if closure is not None:
            return cast(float, super().step(closure))
        by_rate: dict[Rate, list[Tensor]] = {}
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                rate = (group["lr"], *group["betas"], group["eps"])
                by_rate.setdefault(rate, []).extend(params)
        every = [param for params in by_rate.values() for param in params]
        if not every:
            return None
        known = self._known
        if known is None or not known.is_of(every, self.state):
            for group in self.param_groups:
                if any(p.grad is not None and p not in self.state for p in group["params"]):
                    self._init_group(group, [], [], [], [], [], [])  # type: ignore[no-untyped-call] # of torch
            known = self._known = _Moments(every, self.state)
        known.counts.add_(1)
        start = 0
        for rate, params in by_rate.items():
            _step(params, known, slice(start, start + len(params)), rate)
            start += len(params)
        return None

    step.hooked = True  # type: ignore[attr-defined] # otherwise torch wraps it for its profiler


class _Moments:
    """Adam's state of some parameters, in their order.

    The step counts are views of one tensor, so that one operation increments all; those in the
    optimizer's state are the same views.
    """

    def __init__(self, params: list[Tensor], state: MutableMapping[Any, Any]) -> None:
        kept: list[dict[str, Tensor]] = [state[param] for param in params]
        self.first = kept[0]
        self.params = list(map(id, params))
        self.averages = [values["exp_avg"] for values in kept]
        self.squares = [values["exp_avg_sq"] for values in kept]
        self.counts = torch.stack([values["step"] for values in kept])
        self.steps = list(self.counts.unbind())
        for values, step in zip(kept, self.steps, strict=True):
            values["step"] = step

    def is_of(self, params: list[Tensor], state: MutableMapping[Any, Any]) -> bool:
        """Return whether this is still the parameters' state; False after a state was loaded."""
        return self.params == list(map(id, params)) and state.get(params[0]) is self.first


def _step(params: list[Tensor], known: _Moments, part: slice, rate: Rate) -> None:
    lr, beta1, beta2, eps = rate
    torch._fused_adam_(
        params,
        [param.grad for param in params if param.grad is not None],
        known.averages[part],
        known.squares[part],
        [],
        known.steps[part],
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


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
