"""Bodies and heads that can be recorded on tapes, and what they hand to each other there.

A part is recordable if it has ``records`` and ``record`` beside ``forward``. All parts of an agent
that are can be recorded on one tape, which autograd sees as one operation.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from ratchet.agents.fused import may_fuse
from ratchet.agents.operations import concatenate
from ratchet.agents.parts import AgentInput, Representation
from ratchet.agents.tape import Tape, Var, run_recorded


@dataclass
class RecordedRepresentation:
    """A :class:`Representation` on a tape."""

    pooled: Var | None
    symbols: Var | None
    symbol_weight: Tensor | None = None
    _with_round: dict[int, Var] = field(default_factory=dict)

    def pooled_with_round(self, tape: Tape, rounds: Tensor, max_rounds: int | None) -> Var:
        """Append the one-hot round to the whole, once for all heads; not if there are none."""
        assert self.pooled is not None
        if max_rounds is None:
            return self.pooled
        if max_rounds not in self._with_round:
            steps = torch.arange(max_rounds, device=rounds.device)
            one_hot = (rounds.unsqueeze(-1) == steps).to(torch.float32)
            self._with_round[max_rounds] = concatenate(tape, [self.pooled, one_hot], dim=1)
        return self._with_round[max_rounds]


@dataclass
class RecordedLogits:
    """:class:`PolicyLogits` on a tape, the message's as [b, S, K · P]."""

    message: Var
    decision: Var | None = None
    linear_message: Var | None = None


class RecordableBody(Protocol):
    """A body that can be recorded."""

    @property
    def records(self) -> bool:
        """Whether it can be as it is now."""

    def record(self, tape: Tape, inputs: AgentInput) -> RecordedRepresentation:
        """Represent b rows on a tape."""

    def plain(self, inputs: AgentInput) -> Representation:
        """Represent b rows with ordinary operations."""


Recorded = TypeVar("Recorded", covariant=True)


class RecordableHead(Protocol[Recorded]):
    """A head that can be recorded."""

    @property
    def records(self) -> bool:
        """Whether it can be as it is now."""

    def record(
        self, tape: Tape, representation: RecordedRepresentation, inputs: AgentInput
    ) -> Recorded:
        """Do on a tape what ``forward`` does."""


def may_record(part: nn.Module) -> bool:
    """Say whether ``record`` may stand in for calling a part.

    Not where a subclass changes ``forward`` alone, nor where hooks wait for the call.
    """
    if part._forward_hooks or part._forward_pre_hooks:
        return False
    return _keeps_forward(cast(Hashable, type(part))) and bool(getattr(part, "records", False))


@cache
def _keeps_forward(kind: Hashable) -> bool:
    """Say whether the class that wrote ``forward`` wrote ``record`` too."""
    for parent in cast(type, kind).__mro__:
        if "forward" in vars(parent) or "record" in vars(parent):
            return "record" in vars(parent)
    return False


def represent(body: RecordableBody, inputs: AgentInput) -> Representation:
    """Run a body by itself, on a tape if that may be."""
    if not body.records or not may_fuse(inputs.history) or inputs.history.requires_grad:
        return body.plain(inputs)
    recorded: list[RecordedRepresentation] = []

    def record(tape: Tape) -> list[Var]:
        made = body.record(tape, inputs)
        recorded.append(made)
        return [var for var in (made.pooled, made.symbols) if var is not None]

    def plain() -> list[Tensor]:
        made = body.plain(inputs)
        return [tensor for tensor in (made.pooled, made.symbols) if tensor is not None]

    found = iter(run_recorded(record, plain))
    (made,) = recorded
    return Representation(
        pooled=None if made.pooled is None else next(found),
        symbols=None if made.symbols is None else next(found),
        symbol_weight=made.symbol_weight,
    )
