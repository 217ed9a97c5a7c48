"""Hand-written derivatives: when they may be used, and how higher derivatives come about.

Small networks on a CPU spend most of their time in many tiny operations. A fused operation runs a
whole stack of layers with few of them and has its own backward pass. It exists beside a plain
version made of ordinary operations, which is used wherever more than one plain gradient is asked
for: higher derivatives, forward-mode differentiation, functional transforms, other devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad

_plain_only = False


@contextmanager
def only_plain_operations() -> Iterator[None]:
    """Fuse nothing for a while, to compare with."""
    global _plain_only
    before, _plain_only = _plain_only, True
    try:
        yield
    finally:
        _plain_only = before


def may_fuse(tensor: Tensor) -> bool:
    """Say whether fused operations may be used on a tensor here and now.

    Not off the CPU, nor in mixed precision, nor inside ``torch.func`` transforms or forward-mode
    differentiation.
    """
    if _plain_only or tensor.device.type != "cpu" or tensor.dtype != torch.float32:
        return False
    if torch.is_autocast_enabled("cpu"):
        return False
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return not transformed and forward_ad._current_level < 0
