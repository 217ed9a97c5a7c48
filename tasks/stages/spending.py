"""``Spending``: what a run is billed by services, and what it may spend.

Shared by all stages of all arms of a run; safe among threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.errors import BudgetExceededError
from ratchet.language_models.ledger import Charge

if TYPE_CHECKING:
    from ratchet.language_models.ledger import Ledger
    from ratchet.language_models.usage import UsageMeter
    from tasks.stages.calls import StageCall


@dataclass(frozen=True)
class Spending:
    """The ledger of a run, and what its stages have to do with it.

    Its budget is ``settings.budget``, in the currency of the table of prices.
    """

    ledger: Ledger

    @property
    def left(self) -> float | None:
        """What is left for a trainer that keeps an account of its own; None for anything."""
        limit = self.ledger.budget.limit
        return None if limit is None else max(limit - self.ledger.billed.at_most, 0.0)

    def add(self, call: StageCall, usage: UsageMeter) -> None:
        """Enter what a stage has cost that its trainer did not have billed in the ledger."""
        if usage.ledger is not self.ledger and usage.cost > 0:
            self.ledger.settle(f"stage {call.key}", Charge(usage.cost, usage.cost))

    @contextmanager
    def watched(self, call: StageCall, run_id: str | None) -> Iterator[None]:
        """Raise BudgetExceededError again, saying in which stage the budget came to its end."""
        try:
            yield
        except BudgetExceededError as error:
            raise BudgetExceededError(
                f"settings.budget: {call.label!r} would go over it. {error} To go on:"
                f" `ratchet resume {run_id} --budget MORE`."
            ) from error
