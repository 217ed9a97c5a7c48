"""A clock that no adjustment of the system's time moves, comparable among processes of one boot.

Waits that must not be shortened are measured by it. Times of another boot or host are not
comparable: :meth:`BootTime.elapsed` returns None for them.
"""

from __future__ import annotations

import functools
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def boot_id() -> str:
    """Return an id of the system's current boot; of this process where the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"process-{uuid.uuid4()}"


def boot_seconds() -> float:
    """Return seconds since the boot, including time in suspension if the system counts it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(frozen=True, slots=True)
class BootTime:
    """A moment: ``seconds`` since a ``boot``, and the system's time then (since 1970)."""

    boot: str
    seconds: float
    system: float

    @classmethod
    def now(cls) -> Self:
        """Return the current moment."""
        return cls(boot_id(), boot_seconds(), time.time())

    def elapsed(self) -> float | None:
        """Return the seconds since then; None if it is of another boot or host."""
        return boot_seconds() - self.seconds if self.boot == boot_id() else None

    def system_now(self) -> float:
        """Return the system's time now, without adjustments since then, if known."""
        elapsed = self.elapsed()
        return time.time() if elapsed is None else self.system + elapsed

    def forward_jump(self) -> float:
        """Return the seconds by which the system's time was set forward since; 0 if unknown."""
        return max(0.0, time.time() - self.system_now())
