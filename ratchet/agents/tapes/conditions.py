"""When networks may compute on tapes.

A tape gives one plain gradient on a CPU. Where more is asked for, or elsewhere, networks compute
with the ordinary operations of their ``forward``: forward-mode differentiation, functional
transforms, mixed precision, other devices. (Higher derivatives: :mod:`ratchet.agents.tapes.tape`.)
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
    """Put nothing on tapes for a while, to compare with, or to search for an error."""
    global _plain_only
    before, _plain_only = _plain_only, True
    try:
        yield
    finally:
        _plain_only = before


def may_record(tensor: Tensor) -> bool:
    """Return whether what is made of a tensor may be computed on a tape, here and now.

    Not off the CPU, nor in mixed precision, nor inside ``torch.func`` transforms or forward-mode
    differentiation.
    """
    if _plain_only or tensor.device.type != "cpu" or tensor.dtype != torch.float32:
        return False
    if torch.is_autocast_enabled("cpu"):
        return False
    # torch has no public way to ask for either
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return not transformed and forward_ad._current_level < 0
