"""Whether a network's parts compute what their classes do, so that weights say everything.

Whoever takes weights out of a network's parts, instead of calling these, asks here first: a
parametrization, a hook, or a part of another class would be passed over without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import nn
from torch.nn.modules import module as torch_module

_HOLDERS = (nn.ModuleList, nn.ModuleDict)
"""They hold parts and compute nothing."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def are_unchanged(parts: Iterable[nn.Module], kinds: Collection[type[nn.Module]]) -> bool:
    """Return whether parts are of exactly these classes, and nobody listens in on or changes them.

    Parametrized ones are of classes of their own, which torch makes.
    """
    if torch_module._has_any_global_hook():  # type: ignore[no-untyped-call] # of torch
        return False
    return all(
        (type(part) in kinds or type(part) in _HOLDERS)
        and "forward" not in vars(part)
        and not any(getattr(part, hooks) for hooks in _HOOKS)
        for part in parts
    )


def are_listened_to(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether gradients of some parameters are waited for by hooks."""
    return any(
        parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        for parameter in parameters
    )
