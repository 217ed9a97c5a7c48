"""A lease: the sole right to make a stage, across machines that share nothing but an object store.

The lease lies where the stage's manifest will lie, and every change is a compare and swap: taking
it proves that there is no manifest, and the manifest can take its place only while it is held. A
holder that was paused, or cut off, for longer than the lease therefore overwrites nothing.

No two clocks are compared: a lease is over when who waits has seen it unchanged, on his own
clock, for the time that it says.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from ratchet.store.objects import Objects, Stored

_LOGGER = logging.getLogger(__name__)
_RENEWALS = 4  # in the time of a lease: three may fail
_START = b'{"lease": '
"""No manifest begins so."""


class Standing(StrEnum):
    """What an attempt to take a lease has found."""

    TAKEN = "taken"
    """It is held now; there is no manifest."""
    FINISHED = "finished"
    """There is a manifest."""
    HELD = "held"
    """Somebody else holds it."""


@dataclass(frozen=True)
class LeaseRecord:
    """What a lease says of itself.

    Attributes
    ----------
    token
        The holder's own, never used again.
    generation
        How many holders there were, this one included: more than one may have left files.
    beat
        Counts the renewals.
    seconds
        It is over when it has not changed for so long.
    copies
        The holder's folder of local locks.
    """

    token: str
    generation: int
    beat: int
    seconds: float
    copies: str
    pid: int
    host: str
    released: bool = False

    @property
    def holder(self) -> str:
        """Words on who holds it."""
        return f"process {self.pid} on {self.host}"

    def to_bytes(self) -> bytes:
        """Write the record as JSON."""
        return json.dumps({"lease": asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> LeaseRecord | None:
        """Read a record; None if the text is none, but a manifest (or damaged)."""
        if not text.startswith(_START):
            return None
        try:
            return cls(**json.loads(text)["lease"])
        except (ValueError, TypeError, KeyError):
            return None


class Lease:
    """A lease on one object.

    Parameters
    ----------
    objects, path
        Where the lease and then the manifest lies.
    seconds
        How long it holds without a renewal; renewed four times as often while it is held.
    copies
        Tells the folder of local locks. Whoever takes the lease holds the local lock of that
        name: an earlier holder of the same folder is dead, and nobody waits for him.
    clock
        Seconds, of this machine only.
    """

    def __init__(
        self,
        objects: Objects,
        path: str,
        *,
        seconds: float,
        copies: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects, self._path, self._clock = objects, path, clock
        self._blank = LeaseRecord(
            token="", generation=0, beat=0, seconds=seconds, copies=copies,
            pid=os.getpid(), host=socket.gethostname(),
        )  # fmt: skip
        self._mine: LeaseRecord | None = None
        self._tag = ""
        self._seen: tuple[str, float] | None = None
        self._changes = threading.RLock()
        self._ended = threading.Event()
        self.other: LeaseRecord | None = None

    @property
    def held(self) -> bool:
        """Whether it is held, as far as is known here. Only a change of the object proves it."""
        return self._mine is not None

    @property
    def generation(self) -> int:
        """The number of holders up to this one; 0 if it is not held."""
        return 0 if self._mine is None else self._mine.generation

    def take(self, *, look_first: bool = False) -> Standing:
        """Try once to take the lease.

        Parameters
        ----------
        look_first
            Read before writing: for who waits. Otherwise one request takes a free lease.
        """
        if self.held:
            return Standing.TAKEN
        record = replace(self._blank, token=secrets.token_hex(16), generation=1)
        if not look_first and self._write(record, None):
            return Standing.TAKEN
        stored = self._objects.read(self._path)
        if stored is None:
            return Standing.TAKEN if self._write(record, None) else Standing.HELD
        found = LeaseRecord.from_bytes(stored.text)
        if found is None:
            return Standing.FINISHED
        if found.token == record.token:  # the answer to our write got lost
            self._hold(record, stored.tag)
            return Standing.TAKEN
        self.other = found
        if not self._is_over(found, stored):
            return Standing.HELD
        if not found.released:
            _LOGGER.warning(
                "%s: taking over from %s, whose lease has ended", self._path, found.holder
            )
        taken = self._write(replace(record, generation=found.generation + 1), stored.tag)
        return Standing.TAKEN if taken else Standing.HELD

    def displace(self, stored: Stored) -> bool:
        """Take the lease in the place of a manifest; False if that has changed since."""
        record = replace(self._blank, token=secrets.token_hex(16), generation=2)
        return self._write(record, stored.tag)

    def renew(self) -> None:
        """Say that the holder lives; notices if it has been taken over."""
        with self._changes:
            if self._mine is None:
                return
            record = replace(self._mine, beat=self._mine.beat + 1)
            if not self._write(record, self._tag) and not self._is_still_mine():
                _LOGGER.warning(
                    "%s: this process has not renewed its lease in time and has lost it", self._path
                )
                self._end()

    def commit(self, text: bytes) -> bool:
        """Put a manifest in the place of the lease, which ends; False if it was lost."""
        with self._changes:
            while self._mine is not None:
                tag = self._objects.replace(self._path, text, self._tag)
                if tag is not None or not self._is_still_mine():
                    self._end()
                    if tag is not None:
                        return True
            stored = self._objects.read(self._path)  # the answer to our write may have got lost
            return stored is not None and stored.text == text

    def release(self) -> None:
        """Give the lease back, if it is held: the next may take it at once.

        Where that fails the others wait until it is over.
        """
        with self._changes:
            if self._mine is None:
                return
            record = replace(self._mine, released=True)
            try:
                self._objects.replace(self._path, record.to_bytes(), self._tag)
            except Exception as error:  # noqa: BLE001 -- not in the way of what the work has raised
                _LOGGER.warning("%s: could not give the lease back: %s", self._path, error)
            finally:
                self._end()

    def remove(self) -> None:
        """Give the lease back and leave nothing."""
        with self._changes:
            if self._mine is not None:
                self._objects.remove(self._path, self._tag)
                self._end()

    def _write(self, record: LeaseRecord, tag: str | None) -> bool:
        text = record.to_bytes()
        if tag is None:
            new = self._objects.create(self._path, text)
        else:
            new = self._objects.replace(self._path, text, tag)
        if new is not None:
            self._hold(record, new)
        return new is not None

    def _hold(self, record: LeaseRecord, tag: str) -> None:
        with self._changes:
            begins = self._mine is None
            self._mine, self._tag, self._seen = record, tag, None
            if begins:
                self._ended = threading.Event()
                threading.Thread(
                    target=self._renew_until, args=(self._ended,), daemon=True, name="lease"
                ).start()

    def _is_still_mine(self) -> bool:
        """Look whether a refused write went through after all, or nothing has changed."""
        assert self._mine is not None
        stored = self._objects.read(self._path)
        found = None if stored is None else LeaseRecord.from_bytes(stored.text)
        if stored is None or found is None or found.token != self._mine.token:
            return False
        self._mine, self._tag = found, stored.tag
        return True

    def _is_over(self, found: LeaseRecord, stored: Stored) -> bool:
        """Whether nobody holds a lease any more."""
        if found.released or found.copies == self._blank.copies:
            return True
        now = self._clock()
        if self._seen is None or self._seen[0] != stored.tag:
            self._seen = (stored.tag, now)
        return now - self._seen[1] > found.seconds

    def _end(self) -> None:
        self._mine = None
        self._ended.set()

    def _renew_until(self, ended: threading.Event) -> None:
        while not ended.wait(self._blank.seconds / _RENEWALS):
            try:
                self.renew()
            except Exception as error:  # noqa: BLE001 -- the next renewal may go through
                _LOGGER.warning("%s: could not renew the lease: %s", self._path, error)
