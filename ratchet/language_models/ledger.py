"""Write-ahead ledger of a run's charges: every API call attempt and every fine-tuning job.

An attempt without a response may have been billed, and counts at its maximum cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import StoreError
from ratchet.language_models.append_log import AppendLog
from ratchet.language_models.pricing import FREE, Budget, ModelPrice

_LOGGER = logging.getLogger(__name__)
_EARLIER = "earlier stages"
_LONGEST_WAIT = 1.0
"""Interval at which waiting callers re-check: other processes do not wake them."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Minimal and maximal cost, in the price table's currency."""

    at_least: float = 0.0
    at_most: float = 0.0


NOTHING = Charge()


class Attempt:
    """One attempt at a call; counts as ``max_cost`` until its cost is known."""

    def __init__(self, price: ModelPrice = FREE, max_cost: float = 0.0) -> None:
        self.charge = Charge(0.0, max_cost)
        self._price = price

    def answered(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Record the reported usage; without one the cost stays open."""
        if prompt_tokens or completion_tokens:
            cost = self._price.of_call(prompt_tokens, completion_tokens)
            self.charge = Charge(cost, cost)

    def refused(self) -> None:
        """Record that the service did not do the work, so that it costs nothing."""
        self.charge = NOTHING


class Ledger:
    """The account of all charges of a run, across threads, processes and resumptions.

    Each line of the file sets a charge's current amount. An unsettled charge counts at its maximum,
    permanently if its process was killed. Callers without room wait while attempts of this process
    are in flight, since most cost less; with none in flight the budget is exceeded.

    Parameters
    ----------
    budget
        The limit on the sum of all charges.
    path
        The file, created with its first line; None for an account of this process only.
    """

    def __init__(self, budget: Budget | None = None, path: Path | None = None) -> None:
        self.budget = budget or Budget(None)
        self.path = path
        self._lines: AppendLog | None = None
        self._charges: dict[str, Charge] = {}
        self._least = self._most = 0.0
        self._in_flight = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._lock = threading.Lock()
        self._names = (f"{secrets.token_hex(4)}.{number}" for number in itertools.count())
        if path is not None and path.exists():
            with self._exclusive():
                pass  # which reads it

    @property
    def billed(self) -> Charge:
        """The sum of all charges."""
        with self._lock:
            return Charge(self._least, self._most)

    @property
    def num_open(self) -> int:
        """The number of unsettled charges."""
        with self._lock:
            return sum(charge.at_least < charge.at_most for charge in self._charges.values())

    @asynccontextmanager
    async def attempt(
        self, what: str, price: ModelPrice, max_cost: float
    ) -> AsyncIterator[Attempt]:
        """Wait for room, record an attempt, and settle it afterwards.

        Raises StoreError if it cannot be recorded; it must not be sent then.
        """
        name = await self._begin(what, max_cost)
        attempt = Attempt(price, max_cost)
        try:
            yield attempt
        finally:
            self._end(name, attempt.charge)

    def record_earlier_spending(self, spent: float) -> None:
        """Record what was spent before the ledger existed; ignored if it has entries."""
        with self._exclusive() if spent else contextlib.nullcontext():
            if spent and not self._charges:
                self._write(_EARLIER, Charge(spent, spent))

    def reserve(self, name: str, max_cost: float) -> None:
        """Reserve the cost of a named item; again: replace the reservation.

        Raises as :meth:`attempt`, without waiting.
        """
        with self._exclusive():
            known = self._charges.get(name, NOTHING)
            self._check(max_cost - known.at_most)
            self._write(name, Charge(known.at_least, max_cost))

    def reservation(self, name: str) -> Charge | None:
        """Return the reservation of an item; None once it is settled to zero."""
        with self._exclusive():
            charge = self._charges.get(name, NOTHING)
        return charge if charge != NOTHING else None

    def settle(self, name: str, charge: Charge) -> None:
        """Replace an item's reservation by its cost."""
        with self._exclusive():
            self._write(name, charge, keep=True)
            self._wake()

    def close(self) -> None:
        """Close the file; a later write reopens it."""
        with self._lock:
            if self._lines is not None:
                self._lines.close()
            self._lines = None

    async def _begin(self, what: str, max_cost: float) -> str:
        while True:
            if not self._must_wait(max_cost):
                with self._exclusive():
                    if not self._must_wait(max_cost):
                        self._check(max_cost)
                        name = next(self._names)
                        self._write(name, Charge(0.0, max_cost), what)
                        self._in_flight += 1
                        return name
            turn = asyncio.get_running_loop().create_future()
            with self._lock:
                if not self._must_wait(max_cost):
                    continue
                self._waiting.append(turn)
            await asyncio.wait({turn}, timeout=_LONGEST_WAIT)

    def _must_wait(self, max_cost: float) -> bool:
        return self._in_flight > 0 and not self.budget.has_room(self._most, max_cost)

    def _end(self, name: str, charge: Charge) -> None:
        with self._exclusive():
            self._in_flight -= 1
            if charge != self._charges[name]:
                self._write(name, charge, keep=True)
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            with contextlib.suppress(RuntimeError):  # its loop is closed: no caller waits
                turn.get_loop().call_soon_threadsafe(_give, turn)

    def _check(self, planned: float) -> None:
        if planned > 0:
            self.budget.check(self._most, planned, at_least=self._least)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock out other threads and processes, after reading their entries."""
        with self._lock:
            if self.path is None:
                yield
                return
            if self._lines is None:
                self._charges.clear()
                self._least = self._most = 0.0
                self._lines = AppendLog(self.path)
            with self._lines.exclusive():
                for line in self._lines.read():
                    self._take(line)
                yield

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            charge = Charge(float(record["at_least"]), float(record["at_most"]))
            self._put(str(record["id"]), charge)
        except (ValueError, KeyError, TypeError):
            _LOGGER.warning("%s: dropped a torn line of %d bytes", self.path, len(line))

    def _put(self, name: str, charge: Charge) -> None:
        known = self._charges.get(name, NOTHING)
        self._charges[name] = charge
        self._least += charge.at_least - known.at_least
        self._most += charge.at_most - known.at_most

    def _write(self, name: str, charge: Charge, what: str = "", *, keep: bool = False) -> None:
        """Write a charge, then count it; ``keep``: buffer it in memory if the disk is full."""
        record = {"id": name, "at_least": charge.at_least, "at_most": charge.at_most}
        line = json.dumps({**record, "for": what} if what else record, separators=(",", ":"))
        if self._lines is not None and keep:
            self._lines.append_or_buffer(line.encode())
        elif self._lines is not None:
            try:
                self._lines.append(line.encode())
            except OSError as error:
                raise StoreError(
                    f"{self.path}: cannot record the next charge ({error}), so it is not"
                    " incurred. Free disk space, and run the same command: finished work is stored."
                ) from error
        self._put(name, charge)


@dataclass(frozen=True, slots=True)
class Bill:
    """Bills the attempts at a call; nothing if there is no ``ledger``.

    ``max_cost`` is the maximum cost of an attempt; ``what`` is the call's name in the ledger.
    """

    ledger: Ledger | None = None
    price: ModelPrice = FREE
    max_cost: float = 0.0
    what: str = ""

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[Attempt]:
        """Run an attempt within the budget; see :meth:`Ledger.attempt`."""
        if self.ledger is None or self.max_cost == 0:
            yield Attempt()
            return
        async with self.ledger.attempt(self.what, self.price, self.max_cost) as attempt:
            yield attempt


UNBILLED = Bill()


def _give(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
