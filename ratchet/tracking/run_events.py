"""``RunEvent``: events of a run and its stages, as listeners receive them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "run.started",
    "run.completed",
    "run.failed",
    "run.interrupted",
    "run.cancelled",
    "run.pruned",
    "stage.started",
    "stage.computed",
    "stage.cached",
    "stage.retried",
    "stage.failed",
    "stage.waited",
    "stage.stalled",
]
"""Kinds of events. "retried": the stage failed and is tried again. "waited": another process
computed the stage. "cached": the stage was in the store."""


@dataclass(frozen=True)
class RunEvent:
    """An event of a run, or of one of its stages.

    Attributes
    ----------
    kind
        Kind of the event.
    message
        Description.
    arm, stage, iteration
        The stage; empty for events of the run.
    seconds
        Duration of the stage, the wait, or the silence.
    iterations
        Training iterations completed by the stage.
    usage
        Usage of services by the stage, a row for each agent and model.
    """

    kind: Kind
    run: str
    message: str = ""
    arm: str = ""
    stage: str = ""
    iteration: int = 0
    seconds: float | None = None
    iterations: int = 0
    usage: Sequence[dict[str, Any]] = ()

    @property
    def outcome(self) -> str:
        """The kind without its prefix, such as "computed"."""
        return self.kind.partition(".")[2]


Listener: TypeAlias = Callable[[RunEvent], None]
