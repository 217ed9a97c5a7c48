"""Append-only file of lines, for records that must survive a crash.

Every writer appends complete lines. A failed write is rolled back, and a torn tail (its writer was
killed) is terminated, so that the next line starts on its own line.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOGGER = logging.getLogger(__name__)


class AppendLog:
    """Appends lines to a file, one write each, and reads the lines of other writers.

    Lines that cannot be written yet can be buffered in memory; they are written before the next
    line. Where several processes write, all of them read and write within :meth:`exclusive`.

    Parameters
    ----------
    path
        The file; created, with its folder, if missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._end = 0
        self._is_inside_a_line = False
        self._buffered: list[bytes] = []

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock out other processes; a killed process never blocks."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @property
    def num_buffered(self) -> int:
        """The number of buffered lines."""
        return len(self._buffered)

    def read(self) -> list[bytes]:
        """Return the lines after those read or written here, including a torn last one."""
        missing = os.fstat(self._file).st_size - self._end
        if missing <= 0:
            return []
        content = os.pread(self._file, missing, self._end)
        self._end += len(content)
        self._is_inside_a_line = not content.endswith(b"\n")
        return [line for line in content.split(b"\n") if line]

    def append(self, line: bytes) -> None:
        """Write the buffered lines and this one.

        Raises OSError if they cannot be written; the next write terminates a torn line.
        """
        self._write([*self._buffered, line])
        self._buffered.clear()

    def append_or_buffer(self, line: bytes) -> None:
        """Write a line, or buffer it in memory until it can be written."""
        try:
            self.append(line)
        except OSError as error:
            self._buffered.append(line)
            _LOGGER.error("%s: cannot write (%s); lines are buffered in memory", self.path, error)

    def write_buffered(self) -> None:
        """Write the buffered lines; raises as :meth:`append`."""
        if self._buffered:
            self._write(self._buffered)
            self._buffered.clear()

    def close(self) -> None:
        """Flush everything to disk and close the file."""
        if self._file < 0:
            return
        try:
            self.write_buffered()
        except OSError as error:
            _LOGGER.error("%s: %d lines are lost (%s)", self.path, self.num_buffered, error)
        os.fsync(self._file)
        os.close(self._file)
        self._file = -1

    def _write(self, lines: list[bytes]) -> None:
        content = b"".join(line + b"\n" for line in lines)
        if self._is_inside_a_line:
            content = b"\n" + content
        written = 0
        try:
            while written < len(content):  # a full disk truncates one write and refuses the next
                written += os.write(self._file, content[written:])
        except BaseException:
            if written:
                self._truncate(written)
            raise
        self._end += written
        self._is_inside_a_line = False

    def _truncate(self, size: int) -> None:
        """Truncate the last bytes; if that fails, the next write terminates the torn line."""
        try:
            os.ftruncate(self._file, os.fstat(self._file).st_size - size)
        except OSError:
            self._end += size
            self._is_inside_a_line = True
