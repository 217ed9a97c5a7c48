"""Budget for fine-tune jobs: reserved in the ledger before creation, settled at the end."""

from __future__ import annotations

from ratchet.language_models.fine_tune_jobs import AUTO_EPOCHS, FineTuneIntent, FineTuneJob
from ratchet.language_models.ledger import NOTHING, Charge, Ledger
from ratchet.language_models.pricing import FREE, PriceTable

_LETTERS_PER_TOKEN = 4


class BudgetReservation:
    """Reserves and settles the cost of fine-tune jobs in the run's ledger.

    The ``embedded`` service is free.
    """

    def __init__(self, ledger: Ledger, prices: PriceTable) -> None:
        self._ledger = ledger
        self._prices = prices

    def reserve(
        self,
        intent: FineTuneIntent,
        letters: int,
        *,
        embedded: bool = False,
        tuned_from: str | None = None,
    ) -> bool:
        """Reserve the estimated cost of a job; the same reservation again changes nothing.

        Four characters of its examples count as a token. ``tuned_from`` is the model from which the
        intent's model was trained. Returns whether it was already reserved: the job may exist, and
        its end may not have been recorded.
        """
        price = self._prices.find(intent.model, embedded=embedded, tuned_from=tuned_from) or FREE
        epochs = intent.hyper_parameters.get("n_epochs", AUTO_EPOCHS)
        max_cost = price.of_training(int(letters // _LETTERS_PER_TOKEN * epochs))
        was_reserved = self._ledger.reservation(_name(intent)) is not None
        if max_cost > 0:
            self._ledger.reserve(_name(intent), max_cost)
        return was_reserved

    def release(self, intent: FineTuneIntent) -> None:
        """Release the reservation of a job that the service refused to create."""
        if self._ledger.reservation(_name(intent)):
            self._ledger.settle(_name(intent), NOTHING)

    def settle(
        self, intent: FineTuneIntent, job: FineTuneJob, *, tuned_from: str | None = None
    ) -> None:
        """Bill a job's final cost under the service's id.

        A failed job without a token count has trained on no token. A cancelled job is billed for
        its trained tokens; without a count, for the reserved amount.
        """
        reserved = self._ledger.reservation(_name(intent))
        if reserved is None:
            return
        charge = reserved
        if job.trained_tokens or job.status == "failed":
            price = self._prices.find(intent.model, tuned_from=tuned_from) or FREE
            cost = price.of_training(job.trained_tokens or 0)
            charge = Charge(cost, cost)
        self._ledger.settle(f"job {job.id}", charge)
        self._ledger.settle(_name(intent), NOTHING)

    def replace(
        self, intent: FineTuneIntent, job: FineTuneJob, *, tuned_from: str | None = None
    ) -> None:
        """Bill a job that produced no model, and reserve its cost again for the next attempt.

        Raises as :meth:`reserve`.
        """
        reserved = self._ledger.reservation(_name(intent))
        if reserved is not None:
            self.settle(intent, job, tuned_from=tuned_from)
            self._ledger.reserve(_name(intent), reserved.at_most)


def _name(intent: FineTuneIntent) -> str:
    return f"intent {intent.digest}"
