"""A journal of finished calls, so that a killed stage pays again for the calls in flight only.

Append-only lines of JSON. A line is written with one ``write``; nothing is ever changed or cut
off, so a reader needs no lock. A torn line (killed while writing) is not valid JSON and counts as
not written; the next line starts on a line of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ratchet.language_models.types import ChatRequest, Completion

_LOGGER = logging.getLogger(__name__)


class CallJournal:
    """Remembers completions by call id.

    A call whose request differs from the recorded one of the same id is a miss: the answer to
    another question is never used, the call is made anew, and of two lines with one id the later
    one counts. (An error would leave a stage that can't be resumed.)

    Parameters
    ----------
    path
        The file; made, with its folder, if it isn't there.

    Notes
    -----
    Of two concurrent calls with one id the second waits for the first. Use it as a context
    manager, or :meth:`close` it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.calls_made = 0
        self.calls_replayed = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._recorded, self._starts_inside_a_line = _read(self.path)
        self._in_flight: dict[str, asyncio.Lock] = {}

    async def call(
        self, call_id: str, request: ChatRequest, make: Callable[[], Awaitable[Completion]]
    ) -> Completion:
        """Return the recorded completion of a call (e.g. ``"r12/t3/verifier/a0"``), or make it."""
        lock = self._in_flight.setdefault(call_id, asyncio.Lock())
        async with lock:
            digest = request.digest()
            recorded = self._recorded.get(call_id)
            if recorded is not None and recorded[0] == digest:
                self.calls_replayed += 1
                return recorded[1]
            if recorded is not None:
                _LOGGER.warning("%s: call %s has changed; asking again", self.path.name, call_id)
            completion = await make()
            self._append(call_id, digest, completion)
        self._in_flight.pop(call_id, None)
        return completion

    def __len__(self) -> int:
        return len(self._recorded)

    def close(self) -> None:
        """Write what is written through to the disk, and let the file go."""
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, call_id: str, digest: str, completion: Completion) -> None:
        record = {"id": call_id, "request": digest, "completion": completion.to_dict()}
        line = json.dumps(record, separators=(",", ":")) + "\n"
        if self._starts_inside_a_line:
            line = "\n" + line
        _write_all(self._file, line.encode("ascii"))
        self._starts_inside_a_line = False
        self._recorded[call_id] = (digest, completion)
        self.calls_made += 1


def _read(path: Path) -> tuple[dict[str, tuple[str, Completion]], bool]:
    """Return call id → digest of the request and completion; and whether the last line is torn."""
    content = path.read_bytes()
    recorded: dict[str, tuple[str, Completion]] = {}
    for line in content.split(b"\n"):
        if not line:
            continue
        try:
            record = json.loads(line)
            completion = Completion.from_dict(record["completion"])
            recorded[record["id"]] = (record["request"], completion)
        except (ValueError, KeyError, TypeError):
            _LOGGER.warning("%s: dropped a torn line of %d bytes", path.name, len(line))
    return recorded, not content.endswith(b"\n") and bool(content)


def _write_all(file: int, content: bytes) -> None:
    """Write, going on where a write was cut short (a full disk raises)."""
    written = os.write(file, content)
    while written < len(content):
        written += os.write(file, content[written:])
