"""Interface of the fast path: a method, and an implementation that computes the same faster.

Networks and losses are plain torch operations. Autograd records each of them, which for small
tensors takes as long as the arithmetic. Where that costs more than a tenth of an iteration, this
package contains an implementation with hand-written derivatives, and the plain method names it:
``@fast_path(implementation)``. The method itself computes everything that the implementation does
not support.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

Method = TypeVar("Method", bound=Callable[..., Any])

_plain_only = False


@contextmanager
def only_plain_operations() -> Iterator[None]:
    """Disable fast paths within a context, for comparisons or for debugging."""
    global _plain_only
    before, _plain_only = _plain_only, True
    try:
        yield
    finally:
        _plain_only = before


def fast_path(implementation: Callable[..., object]) -> Callable[[Method], Method]:
    """Return a decorator of a method which calls ``implementation`` with the method's arguments.

    The plain method is called if the implementation returns None. Subclasses also use the plain
    method, since they may override parts that the implementation does not call.
    """

    def decorate(plain: Method) -> Method:
        @functools.wraps(plain)
        def method(self: object, *args: object, **kwargs: object) -> object:
            if not _plain_only and vars(type(self)).get(plain.__name__) is method:
                result = implementation(self, *args, **kwargs)
                if result is not None:
                    return result
            return plain(self, *args, **kwargs)

        return cast(Method, method)

    return decorate


def is_supported(tensor: Tensor) -> bool:
    """Return whether implementations support a tensor: f32 on the CPU, differentiated by autograd.

    False in mixed precision, and inside ``torch.func`` transforms or forward-mode differentiation.
    """
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32:
        return False
    if torch.is_autocast_enabled("cpu"):
        return False
    # torch has no public function for either
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return not transformed and forward_ad._current_level < 0
