"""Lease: the exclusive right to compute a stage, across machines that share an object store.

The lease has the path of the stage's manifest, and every change is a compare-and-swap: taking
it proves that no manifest exists, and the manifest can replace it only while it is held. So a
holder that was paused or disconnected for longer than the lease overwrites nothing.

Clocks of two machines are never compared: a lease expires when a waiting process has seen it
unchanged, on its own clock, for the time in the lease.
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

from ratchet.store.objects import Objects, TaggedObject

_LOGGER = logging.getLogger(__name__)
_RENEWALS = 4  # during the time of a lease: three may fail
_START = b'{"lease": '
"""Start of a lease's text, and of no manifest's."""


class LeaseStatus(StrEnum):
    """Outcome of an attempt to take a lease."""

    TAKEN = "taken"
    """This process holds it; no manifest exists."""
    FINISHED = "finished"
    """A manifest exists."""
    HELD = "held"
    """Another process holds it."""


@dataclass(frozen=True)
class LeaseRecord:
    """Content of a lease.

    Attributes
    ----------
    token
        Unique token of the holder.
    generation
        The number of holders so far, this one included: several may have uploaded files.
    beat
        Counts the renewals.
    seconds
        It expires when it has not changed for this time.
    copies
        Identifies the holder's folder of local locks.
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
        """Description of the holder."""
        return f"process {self.pid} on {self.host}"

    def to_bytes(self) -> bytes:
        """Write the record as JSON."""
        return json.dumps({"lease": asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> LeaseRecord | None:
        """Read a record; None for a manifest or a damaged record."""
        if not text.startswith(_START):
            return None
        try:
            return cls(**json.loads(text)["lease"])
        except (ValueError, TypeError, KeyError):
            return None


class Lease:
    """Lease on one object.

    Parameters
    ----------
    objects, path
        The object store, and the path of the lease and later of the manifest.
    seconds
        The time after which it expires without a renewal; it is renewed four times as often.
    copies
        Identifies the folder of local locks. A process that takes the lease holds the local lock
        of that name: an earlier holder with the same folder is dead and need not be awaited.
    clock
        Seconds, on this machine only.
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
        """Whether this process seems to hold it; only a change of the object proves it."""
        return self._mine is not None

    @property
    def generation(self) -> int:
        """The number of holders up to this one; 0 if it is not held."""
        return 0 if self._mine is None else self._mine.generation

    def take(self, *, read_first: bool = False) -> LeaseStatus:
        """Try once to take the lease.

        Parameters
        ----------
        read_first
            Read before writing, while waiting. Otherwise one request takes a free lease.
        """
        if self.held:
            return LeaseStatus.TAKEN
        record = replace(self._blank, token=secrets.token_hex(16), generation=1)
        if not read_first and self._write(record, None):
            return LeaseStatus.TAKEN
        stored = self._objects.read(self._path)
        if stored is None:
            return LeaseStatus.TAKEN if self._write(record, None) else LeaseStatus.HELD
        current = LeaseRecord.from_bytes(stored.text)
        if current is None:
            return LeaseStatus.FINISHED
        if current.token == record.token:  # the response to this process's write got lost
            self._hold(record, stored.tag)
            return LeaseStatus.TAKEN
        self.other = current
        if not self._has_expired(current, stored):
            return LeaseStatus.HELD
        if not current.released:
            _LOGGER.warning(
                "%s: taking over from %s, whose lease has expired", self._path, current.holder
            )
        is_written = self._write(replace(record, generation=current.generation + 1), stored.tag)
        return LeaseStatus.TAKEN if is_written else LeaseStatus.HELD

    def displace(self, stored: TaggedObject) -> bool:
        """Replace a manifest by the lease; False if the manifest has changed since."""
        record = replace(self._blank, token=secrets.token_hex(16), generation=2)
        return self._write(record, stored.tag)

    def renew(self) -> None:
        """Renew the lease; detects that another process has taken over."""
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
        """Replace the lease by a manifest; False if the lease was lost."""
        with self._changes:
            while self._mine is not None:
                tag = self._objects.replace(self._path, text, self._tag)
                if tag is not None or not self._is_still_mine():
                    self._end()
                    if tag is not None:
                        return True
            stored = self._objects.read(self._path)  # the write's response may have got lost
            return stored is not None and stored.text == text

    def release(self) -> None:
        """Release the lease if it is held, so that another process can take it immediately.

        If that fails, other processes wait until it expires.
        """
        with self._changes:
            if self._mine is None:
                return
            record = replace(self._mine, released=True)
            try:
                self._objects.replace(self._path, record.to_bytes(), self._tag)
            except Exception as error:  # noqa: BLE001 -- must not hide an error of the stage
                _LOGGER.warning("%s: could not release the lease: %s", self._path, error)
            finally:
                self._end()

    def remove(self) -> None:
        """Release the lease and remove its object."""
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
            is_new = self._mine is None
            self._mine, self._tag, self._seen = record, tag, None
            if is_new:
                self._ended = threading.Event()
                threading.Thread(
                    target=self._renew_until, args=(self._ended,), daemon=True, name="lease"
                ).start()

    def _is_still_mine(self) -> bool:
        """Check whether a refused write succeeded after all, or the lease is unchanged."""
        assert self._mine is not None
        stored = self._objects.read(self._path)
        current = None if stored is None else LeaseRecord.from_bytes(stored.text)
        if stored is None or current is None or current.token != self._mine.token:
            return False
        self._mine, self._tag = current, stored.tag
        return True

    def _has_expired(self, current: LeaseRecord, stored: TaggedObject) -> bool:
        """Return whether no process holds a lease any more."""
        if current.released or current.copies == self._blank.copies:
            return True
        now = self._clock()
        if self._seen is None or self._seen[0] != stored.tag:
            self._seen = (stored.tag, now)
        return now - self._seen[1] > current.seconds

    def _end(self) -> None:
        self._mine = None
        self._ended.set()

    def _renew_until(self, ended: threading.Event) -> None:
        while not ended.wait(self._blank.seconds / _RENEWALS):
            try:
                self.renew()
            except Exception as error:  # noqa: BLE001 -- the next renewal may succeed
                _LOGGER.warning("%s: could not renew the lease: %s", self._path, error)
