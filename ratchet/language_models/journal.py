"""Journal of completed calls, so that a killed stage repeats only the calls in flight.

Append-only lines of JSON. A line is one ``write``; a torn line (killed while writing) is not valid
JSON and is ignored.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Self

from ratchet.errors import StoreError
from ratchet.language_models.append_log import AppendLog
from ratchet.language_models.types import ChatRequest, Completion

_LOGGER = logging.getLogger(__name__)


class CallJournal:
    """Caches completions by call id.

    If a call's request differs from the recorded one, it is a cache miss: the call is repeated, and
    the later of two lines with one id counts. (An error would leave a stage that cannot be
    resumed.)

    Parameters
    ----------
    path
        The file; created, with its folder, if missing.

    Notes
    -----
    Of two concurrent calls with one id, the second waits for the first. Use it as a context
    manager, or :meth:`close` it. On a full disk, completions in flight are returned, buffered in
    memory and written once there is space; until then no new call is sent.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.calls_made = 0
        self.calls_replayed = 0
        self._lines = AppendLog(self.path)
        self._recorded = _parse(self._lines.read(), self.path.name)
        self._in_flight: dict[str, asyncio.Lock] = {}

    async def call(
        self, call_id: str, request: ChatRequest, make: Callable[[], Awaitable[Completion]]
    ) -> Completion:
        """Return the recorded completion of a call such as ``"r12/t3/verifier/a0"``, or make it.

        Raises
        ------
        StoreError
            If earlier completions cannot be recorded; the call is not made.
        """
        lock = self._in_flight.setdefault(call_id, asyncio.Lock())
        async with lock:
            digest = request.digest()
            recorded = self._recorded.get(call_id)
            if recorded is not None and recorded[0] == digest:
                self.calls_replayed += 1
                return recorded[1]
            if recorded is not None:
                _LOGGER.warning("%s: call %s has changed; calling again", self.path.name, call_id)
            self._write_buffered()
            completion = await make()
            record = {"id": call_id, "request": digest, "completion": completion.to_dict()}
            line = json.dumps(record, separators=(",", ":"))
            self._lines.append_or_buffer(line.encode("ascii"))
            self._recorded[call_id] = (digest, completion)
            self.calls_made += 1
        self._in_flight.pop(call_id, None)
        return completion

    def __len__(self) -> int:
        return len(self._recorded)

    def close(self) -> None:
        """Flush to disk and close the file."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_buffered(self) -> None:
        try:
            self._lines.write_buffered()
        except OSError as error:
            raise StoreError(
                f"{self.path}: {self._lines.num_buffered} completions cannot be recorded ({error}),"
                " so no more are requested. They are buffered in memory until there is"
                " space: free disk space, and run the same command."
            ) from error


def _parse(lines: Iterable[bytes], name: str) -> dict[str, tuple[str, Completion]]:
    """Return call id → digest of the request and completion."""
    recorded: dict[str, tuple[str, Completion]] = {}
    for line in lines:
        try:
            record = json.loads(line)
            completion = Completion.from_dict(record["completion"])
            recorded[record["id"]] = (record["request"], completion)
        except (ValueError, KeyError, TypeError):
            _LOGGER.warning("%s: dropped a torn line of %d bytes", name, len(line))
    return recorded
