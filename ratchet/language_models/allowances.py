"""What work that has not been paid for yet may cost: calls in flight, and fine-tune jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ratchet.language_models.pricing import FREE, Budget, PriceTable

_LETTERS_PER_TOKEN = 4


class CallAllowance:
    """Lets calls begin only where what they cost at most is left.

    Calls in flight count with the most that they can cost. Who finds no room waits until one of
    them has ended, since most cost less; with none in flight the budget is exceeded. For one event
    loop.
    """

    def __init__(self, budget: Budget, spent: Callable[[], float]) -> None:
        self._budget = budget
        self._spent = spent
        self._in_flight = 0
        self._reserved = 0.0
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def call(self, most: float) -> AsyncIterator[None]:
        """Wait until there is room for a call that costs at most ``most``, and keep it meanwhile.

        What it has cost must be added to ``spent`` before anything else is awaited.

        Raises
        ------
        BudgetExceededError
            If it would be too much with no other call in flight.
        """
        while self._in_flight and not self._budget.has_room(self._spent() + self._reserved, most):
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(settled)
            await settled
        self._budget.check(self._spent() + self._reserved, most)
        self._in_flight += 1
        self._reserved += most
        try:
            yield
        finally:
            self._in_flight -= 1
            self._reserved = self._reserved - most if self._in_flight else 0.0
            waiting, self._waiting = self._waiting, []
            for settled in waiting:
                if not settled.done():
                    settled.set_result(None)


class TrainingAllowance:
    """What the fine-tune jobs of one stage may cost together."""

    def __init__(self, budget: Budget, prices: PriceTable) -> None:
        self._budget = budget
        self._prices = prices
        self._planned = 0.0

    def reserve(self, model: str, letters: int, epochs: int, *, embedded: bool = False) -> None:
        """Set aside what a job will cost, or refuse it before it is made.

        Four ``letters`` of its examples are taken for a token; Ratchet's own service costs nothing.

        Raises
        ------
        BudgetExceededError
            If this job and those before it would cost more than the budget.
        """
        price = self._prices.find(model, embedded=embedded) or FREE
        cost = price.of_training(letters // _LETTERS_PER_TOKEN * epochs)
        self._budget.check(self._planned, cost)
        self._planned += cost
