"""Recorders by the class of the network that they stand in for.

A network has a plain ``forward`` and knows nothing of tapes. A recorder computes the same on a
tape. It serves exactly the class that it is registered for, made of parts of exactly the classes
that it knows: a subclass, which may compute something else, takes the plain path by itself, and so
does a network with a part that is parametrized, replaced, or has hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from torch import Tensor, nn

from ratchet.agents.networks.unchanged import is_unchanged_within
from ratchet.agents.tapes.conditions import may_record
from ratchet.agents.tapes.tape import Tape, Var, run_recorded

Record = Callable[[Tape], Sequence[Var]]
"""Computes on a tape; gives the variables that come out."""
Recorder = Callable[..., Record | None]
"""Given a network and its inputs, gives what computes its outputs; None for the plain path."""

Made = TypeVar("Made", bound=Recorder)


class _Registered(NamedTuple):
    recorder: Recorder
    parts: frozenset[type[nn.Module]]


_RECORDERS: dict[type[nn.Module], _Registered] = {}


def register_recorder(
    network: type[nn.Module], parts: Collection[type[nn.Module]] = ()
) -> Callable[[Made], Made]:
    """Return a decorator that has a recorder stand in for a class of networks.

    The recorder is called with the network and what the network is called with. It looks whether
    it can do the same for the network as it is now (its activation function, its training mode).
    ``parts`` are the classes of modules within the network whose weights it takes; a network with
    any other computes as ever.
    """

    def register(recorder: Made) -> Made:
        _RECORDERS[network] = _Registered(recorder, frozenset(parts))
        return recorder

    return register


def record_of(network: nn.Module, *inputs: object) -> Record | None:
    """Return what computes a network's outputs on a tape; None where that is not to be done."""
    known = _RECORDERS.get(type(network))
    if known is None or not all(may_record(x) for x in inputs if isinstance(x, Tensor)):
        return None
    if not is_unchanged_within(network, known.parts):
        return None
    return known.recorder(network, *inputs)


def take_fast_path(network: nn.Module) -> None:
    """Have calls of the networks within one go to their recorders, of those that have any."""
    for part in network.modules():
        if type(part) in _RECORDERS:
            part.forward = partial(_forward, part)


def _forward(network: nn.Module, *inputs: object) -> Tensor | tuple[Tensor, ...]:
    """Compute a network's outputs: on a tape if that may be."""

    def plain() -> Tensor | tuple[Tensor, ...]:
        made: Tensor | tuple[Tensor, ...] = type(network).forward(network, *inputs)
        return made

    record = record_of(network, *inputs)
    if record is None:
        return plain()
    outputs = run_recorded(record, lambda: _as_tuple(plain()))
    return outputs[0] if len(outputs) == 1 else outputs


def _as_tuple(made: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (made,) if isinstance(made, Tensor) else made
