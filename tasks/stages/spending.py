"""``Spending``: what a run has spent on services, and what it may.

Shared by all stages of all arms of a run; safe among threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ratchet.errors import BudgetExceededError

if TYPE_CHECKING:
    from tasks.stages.calls import StageCall


class Spending:
    """Money spent by the stages that a run has made, and its limit.

    ``limit`` is ``settings.budget``, in the currency of the table of prices, or None; ``spent``
    that of earlier attempts at the same run.
    """

    def __init__(self, limit: float | None = None, spent: float = 0.0) -> None:
        self.limit = limit
        self._spent = spent
        self._lock = threading.Lock()

    @property
    def spent(self) -> float:
        """What has been spent so far."""
        with self._lock:
            return self._spent

    def add(self, cost: float) -> None:
        """Count what a stage has cost."""
        with self._lock:
            self._spent += cost

    def left(self, run_id: str | None) -> float | None:
        """Return what the next stage may cost, None for anything.

        Raises BudgetExceededError if nothing is left.
        """
        if self.limit is None:
            return None
        left = self.limit - self.spent
        if left <= 0:
            raise self._exceeded(run_id, "so that nothing is left")
        return left

    @contextmanager
    def watched(self, call: StageCall, run_id: str | None) -> Iterator[None]:
        """Raise BudgetExceededError again, saying in which stage the budget came to its end."""
        try:
            yield
        except BudgetExceededError as error:
            raise self._exceeded(run_id, f"and {call.label!r} has used up the rest") from error

    def _exceeded(self, run_id: str | None, where: str) -> BudgetExceededError:
        return BudgetExceededError(
            f"settings.budget: the limit is {self.limit:.4g}; finished stages of this run have cost"
            f" {self.spent:.4g}, {where}. Finished stages and calls"
            f" are kept; go on with a higher budget: `ratchet resume {run_id} --budget MORE`."
        )
