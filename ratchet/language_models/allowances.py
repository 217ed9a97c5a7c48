"""What fine-tune jobs may cost: held in the ledger before they are made, settled at their end."""

from __future__ import annotations

from ratchet.language_models.fine_tune_jobs import AUTO_EPOCHS, FineTuneIntent, FineTuneJob
from ratchet.language_models.ledger import NOTHING, Charge, Ledger
from ratchet.language_models.pricing import FREE, PriceTable

_LETTERS_PER_TOKEN = 4


class TrainingAllowance:
    """What fine-tune jobs are billed, in the ledger of all that is spent.

    Ratchet's own service, ``embedded``, costs nothing.
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
        """Set aside what a job will cost, or refuse it before it is made; the same again is held.

        Four ``letters`` of its examples are taken for a token. ``tuned_from`` is the model that
        the intent's was trained from. Returns whether it was held before: the job may have been
        made, and not have been seen to its end.

        Raises
        ------
        BudgetExceededError
            If this job and what is billed and held already would be more than the budget.
        """
        price = self._prices.find(intent.model, embedded=embedded, tuned_from=tuned_from) or FREE
        epochs = intent.hyper_parameters.get("n_epochs", AUTO_EPOCHS)
        most = price.of_training(int(letters // _LETTERS_PER_TOKEN * epochs))
        was_held = self._ledger.holds(_name(intent)) is not None
        if most > 0:
            self._ledger.hold(_name(intent), most)
        return was_held

    def release(self, intent: FineTuneIntent) -> None:
        """Give back what was held for a job that the service has refused to make."""
        if self._ledger.holds(_name(intent)):
            self._ledger.settle(_name(intent), NOTHING)

    def settle(
        self, intent: FineTuneIntent, job: FineTuneJob, *, tuned_from: str | None = None
    ) -> None:
        """Enter what a job has cost at its end, under the id that the service gave it.

        One that failed without a count of its tokens has trained on nothing. One that was
        cancelled is billed for what it has trained on until then; without a count it may have cost
        what was held.
        """
        held = self._ledger.holds(_name(intent))
        if held is None:
            return
        charge = held
        if job.trained_tokens or job.status == "failed":
            price = self._prices.find(intent.model, tuned_from=tuned_from) or FREE
            cost = price.of_training(job.trained_tokens or 0)
            charge = Charge(cost, cost)
        self._ledger.settle(f"job {job.id}", charge)
        self._ledger.settle(_name(intent), NOTHING)

    def replace(
        self, intent: FineTuneIntent, job: FineTuneJob, *, tuned_from: str | None = None
    ) -> None:
        """Enter what a job has cost that came to nothing, and hold its cost again for the next.

        Raises as :meth:`reserve`.
        """
        held = self._ledger.holds(_name(intent))
        if held is not None:
            self.settle(intent, job, tuned_from=tuned_from)
            self._ledger.hold(_name(intent), held.at_most)


def _name(intent: FineTuneIntent) -> str:
    return f"intent {intent.digest}"
