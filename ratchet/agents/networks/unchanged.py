"""Whether a network's parts compute what their classes do, so that weights say everything.

Whoever takes weights out of a network's parts, instead of calling these, asks here first: a
parametrization, a hook, or a part of another class would be passed over without a word. Asked for
each minibatch, hence straight from torch's own dictionaries.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import nn
from torch.nn.modules import module as torch_module

_HOLDERS = (nn.ModuleList, nn.ModuleDict)
"""They hold parts and compute nothing."""


def is_unchanged_within(network: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    """Return whether a network's parts are of exactly these classes and as these made them.

    Not if one has hooks or a forward of its own, or a parameter has hooks. Parametrized parts are
    of classes of their own, which torch makes.
    """
    if torch_module._has_any_global_hook():  # type: ignore[no-untyped-call] # of torch
        return False
    return _is_unchanged_within(network, kinds)


def _is_unchanged_within(network: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    for parameter in network._parameters.values():
        if parameter is not None and (
            parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        ):
            return False
    for part in network._modules.values():
        if part is None:
            continue
        own = vars(part)
        if (
            (type(part) not in kinds and type(part) not in _HOLDERS)
            or "forward" in own
            or own["_forward_pre_hooks"]
            or own["_forward_hooks"]
            or own["_backward_pre_hooks"]
            or own["_backward_hooks"]
            or not _is_unchanged_within(part, kinds)
        ):
            return False
    return True
