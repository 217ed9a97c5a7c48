"""``Silence``: the time without progress of an awaited process."""

from __future__ import annotations

import time
from pathlib import Path


class Silence:
    """Time since an observed value last changed, so that a limit ends silence, never progress."""

    def __init__(self) -> None:
        self._value: object = None
        self._since = time.monotonic()

    def seconds(self, value: object) -> float:
        """Return for how many seconds ``value`` has been the same, e.g. a step or a log's size."""
        if value != self._value:
            self._value, self._since = value, time.monotonic()
        return time.monotonic() - self._since


def file_size(path: Path) -> int:
    """Return a file's size in bytes, 0 without the file."""
    return path.stat().st_size if path.exists() else 0
