"""What a run is billed: every attempt at a call and every job, written down before it is made.

An attempt whose answer is lost may have been billed, and counts with the most that it can cost.
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
from ratchet.language_models.appended_lines import AppendedLines
from ratchet.language_models.pricing import FREE, Budget, ModelPrice

_LOGGER = logging.getLogger(__name__)
_EARLIER = "earlier stages"
_LONGEST_WAIT = 1.0
"""Seconds until who waits for room looks again, since other processes don't wake it."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What something costs at least and at most, in the price table's currency."""

    at_least: float = 0.0
    at_most: float = 0.0


NOTHING = Charge()


class Attempt:
    """One attempt at a call: counts with ``most`` until it is known what it costs."""

    def __init__(self, price: ModelPrice = FREE, most: float = 0.0) -> None:
        self.charge = Charge(0.0, most)
        self._price = price

    def answered(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Take what the service counted; one that counts nothing leaves it open."""
        if prompt_tokens or completion_tokens:
            cost = self._price.of_call(prompt_tokens, completion_tokens)
            self.charge = Charge(cost, cost)

    def refused(self) -> None:
        """Note that the service has not done the work, so that it costs nothing."""
        self.charge = NOTHING


class Ledger:
    """One account of all that a run spends, for all its threads, processes and resumptions.

    A line of the file says what a charge is now; one that is not settled counts with its most, as
    that of a killed process does for ever. Who finds no room waits while attempts of this process
    are in flight, since most cost less; with none in flight the budget is exceeded.

    Parameters
    ----------
    budget
        What all charges may come to.
    path
        The file, made with its first line; None for an account of this process alone.
    """

    def __init__(self, budget: Budget | None = None, path: Path | None = None) -> None:
        self.budget = budget or Budget(None)
        self.path = path
        self._lines: AppendedLines | None = None
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
        """The number of charges of which only the most is known."""
        with self._lock:
            return sum(charge.at_least < charge.at_most for charge in self._charges.values())

    @asynccontextmanager
    async def attempt(self, what: str, price: ModelPrice, most: float) -> AsyncIterator[Attempt]:
        """Wait until there is room for an attempt, write it down, and settle it afterwards.

        Raises
        ------
        BudgetExceededError
            If it would be too much with no other attempt in flight.
        StoreError
            If it can't be written down; it must not be made then.
        """
        name = await self._begin(what, most)
        attempt = Attempt(price, most)
        try:
            yield attempt
        finally:
            self._end(name, attempt.charge)

    def begin_with(self, spent: float) -> None:
        """Enter what was spent before there was a ledger; nothing where there is one."""
        with self._exclusive() if spent else contextlib.nullcontext():
            if spent and not self._charges:
                self._write(_EARLIER, Charge(spent, spent))

    def hold(self, name: str, most: float) -> None:
        """Set aside what something with a name of its own may cost; again: that it costs now.

        Raises as :meth:`attempt`, at once.
        """
        with self._exclusive():
            known = self._charges.get(name, NOTHING)
            self._check(most - known.at_most)
            self._write(name, Charge(known.at_least, most))

    def holds(self, name: str) -> Charge | None:
        """Return what is held for something; None once it is settled to nothing."""
        with self._exclusive():
            charge = self._charges.get(name, NOTHING)
        return charge if charge != NOTHING else None

    def settle(self, name: str, charge: Charge) -> None:
        """Say what something has cost, whatever was held for it."""
        with self._exclusive():
            self._write(name, charge, keep=True)
            self._wake()

    def close(self) -> None:
        """Let the file go; what is written after it opens it again."""
        with self._lock:
            if self._lines is not None:
                self._lines.close()
            self._lines = None

    async def _begin(self, what: str, most: float) -> str:
        while True:
            if not self._must_wait(most):
                with self._exclusive():
                    if not self._must_wait(most):
                        self._check(most)
                        name = next(self._names)
                        self._write(name, Charge(0.0, most), what)
                        self._in_flight += 1
                        return name
            turn = asyncio.get_running_loop().create_future()
            with self._lock:
                if not self._must_wait(most):
                    continue
                self._waiting.append(turn)
            await asyncio.wait({turn}, timeout=_LONGEST_WAIT)

    def _must_wait(self, most: float) -> bool:
        return self._in_flight > 0 and not self.budget.has_room(self._most, most)

    def _end(self, name: str, charge: Charge) -> None:
        with self._exclusive():
            self._in_flight -= 1
            if charge != self._charges[name]:
                self._write(name, charge, keep=True)
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody waits any more
                turn.get_loop().call_soon_threadsafe(_give, turn)

    def _check(self, planned: float) -> None:
        if planned > 0:
            self.budget.check(self._most, planned, at_least=self._least)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other threads and processes out, knowing what they have written."""
        with self._lock:
            if self.path is None:
                yield
                return
            if self._lines is None:
                self._charges.clear()
                self._least = self._most = 0.0
                self._lines = AppendedLines(self.path)
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
        """Write a charge down, then count it; ``keep``: in memory, where the disk is full."""
        record = {"id": name, "at_least": charge.at_least, "at_most": charge.at_most}
        line = json.dumps({**record, "for": what} if what else record, separators=(",", ":"))
        if self._lines is not None and keep:
            self._lines.append_or_keep(line.encode())
        elif self._lines is not None:
            try:
                self._lines.append(line.encode())
            except OSError as error:
                raise StoreError(
                    f"{self.path}: what comes next can't be written down ({error}), so it is not"
                    " asked for. Make room, and run the same command: finished work is kept."
                ) from error
        self._put(name, charge)


@dataclass(frozen=True, slots=True)
class Bill:
    """What a call is billed, attempt by attempt; nothing where no ``ledger`` is kept.

    ``most`` is what an attempt can cost at most, ``what`` names the call in the ledger.
    """

    ledger: Ledger | None = None
    price: ModelPrice = FREE
    most: float = 0.0
    what: str = ""

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[Attempt]:
        """Make an attempt within the budget; see :meth:`Ledger.attempt`."""
        if self.ledger is None or self.most == 0:
            yield Attempt()
            return
        async with self.ledger.attempt(self.what, self.price, self.most) as attempt:
            yield attempt


UNBILLED = Bill()


def _give(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
