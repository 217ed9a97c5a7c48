"""``Spending``: what a run has spent on services, and what it may.

Shared by all stages of all arms of a run; safe among threads.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ratchet.errors import BudgetExceededError

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings


class Spending:
    """Money spent by the stages that a run has made, and its limit.

    Parameters
    ----------
    limit
        ``settings.budget``, in the currency of the table of prices; None for no limit.
    spent
        By earlier attempts at the same run.
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

    def remaining(self, settings: ExperimentSettings) -> ExperimentSettings:
        """Give the settings with what is left as the budget of the next stage.

        Raises
        ------
        BudgetExceededError
            If nothing is left.
        """
        if self.limit is None:
            return settings
        left = self.limit - self.spent
        if left <= 0:
            raise BudgetExceededError(
                f"settings.budget: {self.spent:.4g} is spent, the limit is {self.limit:.4g}."
                " Finished stages and calls are kept; go on with a higher budget:"
                f" `ratchet resume {settings.run_id} --budget MORE`."
            )
        return settings.model_copy(update={"budget": left})
