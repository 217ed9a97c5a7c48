"""Early stopping: ends training when a metric stops improving."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, PositiveInt

from ratchet.parameters.base import SubParameters
from trainers.callbacks.base import Callback, CallbackState, Moment
from trainers.callbacks.metrics import is_better, read_metric
from trainers.callbacks.registry import register_callback


class EarlyStoppingParameters(SubParameters):
    """Conditions under which training ends.

    ``metric`` is one of an iteration's. Training ends after ``patience`` consecutive iterations
    without an improvement of the best value by more than ``min_delta``, or when the metric
    reaches ``stop_at``.
    """

    metric: str
    mode: Literal["max", "min"] = "max"
    patience: PositiveInt = 10
    min_delta: float = Field(default=0.0, ge=0)
    stop_at: float | None = None


@register_callback("early_stopping")
class EarlyStopping(Callback):
    """Stops the run when a metric stops improving; NaN never counts as an improvement.

    Iterations without the metric are ignored after the first one that has it.
    """

    Parameters = EarlyStoppingParameters
    steers = True
    parameters: EarlyStoppingParameters

    best: float | None = None
    waited: int = 0

    def end_iteration(self, now: Moment) -> None:
        """Compare the metric with the best so far."""
        parameters = self.parameters
        seen = self.best is not None or self.waited > 0
        value = read_metric(now, parameters.metric, seen=seen)
        if value is None:
            return
        if math.isnan(value):
            self.waited += 1
        elif self.best is None or is_better(
            value, self.best, parameters.mode, parameters.min_delta
        ):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        goal = parameters.stop_at
        if goal is not None and (value == goal or is_better(value, goal, parameters.mode)):
            self.stop(f"{parameters.metric} is {value:g} and has reached {goal:g}")
        elif self.waited >= parameters.patience:
            best = f"no better than {self.best:g}" if self.best is not None else "no number"
            self.stop(f"{parameters.metric} has been {best} for {self.waited} iterations")

    def take_state(self) -> CallbackState:
        """Return the best value, and the number of iterations since."""
        return CallbackState({"best": self.best, "waited": self.waited})

    def load_state(self, state: CallbackState) -> None:
        """Restore the best value and the waiting time."""
        self.best, self.waited = state.values["best"], state.values["waited"]
