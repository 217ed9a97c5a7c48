"""A file of lines that only grows: for what must be kept the moment it is known.

Whoever opens it writes whole lines only. A write that failed is taken back, and a torn tail (the
writer was killed) is ended, so that the next line always begins at a line's beginning.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOGGER = logging.getLogger(__name__)


class AppendedLines:
    """Appends lines to a file, each with one write, and reads what others have appended.

    Lines that can't be written now may be kept in memory: they go before the next line. Where
    several processes write, all do so, and read before, in :meth:`exclusive`.

    Parameters
    ----------
    path
        The file; made, with its folder, if it isn't there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._end = 0
        self._is_inside_a_line = False
        self._kept: list[bytes] = []

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes out; a killed one never blocks."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @property
    def num_kept(self) -> int:
        """The number of lines that are not written yet."""
        return len(self._kept)

    def read(self) -> list[bytes]:
        """Return the lines behind what was read or written here; a last torn one, too."""
        missing = os.fstat(self._file).st_size - self._end
        if missing <= 0:
            return []
        content = os.pread(self._file, missing, self._end)
        self._end += len(content)
        self._is_inside_a_line = not content.endswith(b"\n")
        return [line for line in content.split(b"\n") if line]

    def append(self, line: bytes) -> None:
        """Write the lines that were kept, and this one.

        Raises
        ------
        OSError
            If they can't be written. The file ends as it did before, or in a torn line that the
            next write ends.
        """
        self._write([*self._kept, line])
        self._kept.clear()

    def append_or_keep(self, line: bytes) -> None:
        """Write a line, or keep it in memory until one can be written."""
        try:
            self.append(line)
        except OSError as error:
            self._kept.append(line)
            _LOGGER.error("%s: can't be written (%s); lines are kept in memory", self.path, error)

    def write_kept(self) -> None:
        """Write the lines that were kept; errors as :meth:`append`."""
        if self._kept:
            self._write(self._kept)
            self._kept.clear()

    def close(self) -> None:
        """Write everything through to the disk, and let the file go."""
        if self._file < 0:
            return
        try:
            self.write_kept()
        except OSError as error:
            _LOGGER.error("%s: %d lines are lost (%s)", self.path, self.num_kept, error)
        os.fsync(self._file)
        os.close(self._file)
        self._file = -1

    def _write(self, lines: list[bytes]) -> None:
        content = b"".join(line + b"\n" for line in lines)
        if self._is_inside_a_line:
            content = b"\n" + content
        written = 0
        try:
            while written < len(content):  # a full disk cuts one short, and refuses the next
                written += os.write(self._file, content[written:])
        except BaseException:
            if written:
                self._take_back(written)
            raise
        self._end += written
        self._is_inside_a_line = False

    def _take_back(self, size: int) -> None:
        """Cut off the last bytes; where that fails, too, the next write ends the torn line."""
        try:
            os.ftruncate(self._file, os.fstat(self._file).st_size - size)
        except OSError:
            self._end += size
            self._is_inside_a_line = True
