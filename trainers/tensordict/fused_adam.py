"""Adam and clipping as torch does them, bit for bit, without what torch checks at every step.

With small networks torch's own wrappers take longer than the arithmetic; both functions here call
the same kernels on the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast, overload

import torch
from torch import Tensor


class FusedAdam(torch.optim.Adam):
    """Adam (Kingma & Ba 2015) with torch's fused kernel; no weight decay, no AMSGrad.

    Parameters
    ----------
    params
        Parameters or groups of them, as for :class:`torch.optim.Adam`.
    lr
        The learning rate of groups without one of their own.
    """

    def __init__(self, params: Iterable[Any], lr: float) -> None:
        super().__init__(params, lr=lr, fused=True)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step with the parameters that have a gradient, all of one rate at once."""
        if closure is not None:
            return cast(float, super().step(closure))
        by_rate: dict[tuple[float, ...], list[Tensor]] = {}
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if any(param not in self.state for param in params):
                self._init_group(group, [], [], [], [], [], [])  # type: ignore[no-untyped-call] # of torch
            by_rate.setdefault((group["lr"], *group["betas"], group["eps"]), []).extend(params)
        for rate, params in by_rate.items():
            if params:
                self._step_params(params, *rate)
        return None

    step.hooked = True  # type: ignore[attr-defined] # or torch wraps it for its profiler

    def _step_params(
        self, params: list[Tensor], lr: float, beta1: float, beta2: float, eps: float
    ) -> None:
        kept: list[dict[str, Tensor]] = [self.state[param] for param in params]
        steps = [values["step"] for values in kept]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            params,
            [param.grad for param in params if param.grad is not None],
            [values["exp_avg"] for values in kept],
            [values["exp_avg_sq"] for values in kept],
            [],
            steps,
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

    As :func:`torch.nn.utils.clip_grad_norm_`, for parameters on one device.

    Returns
    -------
    Tensor
        f32 [], the norm before.
    """
    gradients = [param.grad for param in params if param.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)))
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp_(max=1.0))
    return norm
