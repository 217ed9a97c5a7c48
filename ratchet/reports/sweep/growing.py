"""``GrowingPage``: writes the page of a sweep anew while the sweep runs, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from ratchet.errors import RatchetError
from ratchet.reports.sweep.page import make_sweep_page, write_sweep_page

logger = logging.getLogger(__name__)

STAGE_SECONDS = 20.0
"""So often it is looked what the members' stages have recorded meanwhile."""
SHARE = 0.03
"""The largest share of the time that may go into writing the page."""


class GrowingPage:
    """Written at once, when a member has ended, every few seconds, and a last time at the end."""

    def __init__(self, runs: Path | str, sweep_id: str) -> None:
        self._runs, self._sweep_id = runs, sweep_id
        self._news, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._grow, name="sweep page", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Say that a member has ended; never waits."""
        self._news.set()

    def close(self) -> None:
        """Write what the sweep has come to."""
        self._ended.set()
        self._news.set()
        self._thread.join()
        self._write()

    def _grow(self) -> None:
        while not self._ended.is_set():
            self._news.clear()
            begin = time.monotonic()
            self._write()
            self._ended.wait((time.monotonic() - begin) / SHARE)
            self._news.wait(STAGE_SECONDS)

    def _write(self) -> None:
        """Write the page; that it fails is no reason for the sweep to fail."""
        try:
            page = make_sweep_page(self._runs, self._sweep_id)
            write_sweep_page(page, Path(self._runs) / self._sweep_id)
        except (RatchetError, OSError):
            logger.exception("the page of sweep %s", self._sweep_id)
