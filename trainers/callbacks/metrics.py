"""Functions shared by callbacks that watch a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ratchet.errors import UnknownNameError, nearest

if TYPE_CHECKING:
    from trainers.callbacks.base import Moment


def read_metric(now: Moment, name: str, *, seen: bool) -> float | None:
    """Return a metric; None if it was not measured this time.

    Raises UnknownNameError if it is missing and has not been seen before.
    """
    if name not in now.metrics and not seen:
        raise UnknownNameError(
            f"metric {name!r}: iteration {now.iteration} has none of that name."
            f"{nearest(name, list(now.metrics))} Metrics of other callbacks are available to those"
            " after them in the list."
        )
    return now.metrics.get(name)


def is_better(
    value: float, best: float, mode: Literal["max", "min"], min_delta: float = 0.0
) -> bool:
    """Return whether a value is better than ``best`` by more than ``min_delta``; NaN never is."""
    return value > best + min_delta if mode == "max" else value < best - min_delta
