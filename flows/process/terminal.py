"""The terminal of a command: it may be closed, and the pipe that reads its output may be, too."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from types import FrameType

_CLOSED = (errno.EPIPE, errno.EIO)


class _Output(io.FileIO):
    """A stream whose output is discarded once nobody reads it, so that the command continues."""

    def write(self, content: object, /) -> int:
        """Write what is given; nothing more after the other end was closed."""
        try:
            return super().write(content)  # type: ignore[arg-type] # any buffer, as of FileIO
        except OSError as error:
            if error.errno not in _CLOSED:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(content)  # type: ignore[arg-type]


def survive_closing() -> None:
    """Let the command continue without output when its terminal or its pipe is closed.

    A closed terminal (SIGHUP) ends a command as SIGTERM does, so that its run is marked as ended;
    a command under ``nohup`` ignores it.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and stream is not None:
            stream.flush()
            raw = _Output(number, "wb", closefd=False)
            replaced = io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=True,
            )
            setattr(sys, name, replaced)
            setattr(sys, f"__{name}__", replaced)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _end)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """End as SIGTERM does: a flow handles that itself, before one it is like Ctrl-C."""
    if number == signal.SIGHUP and signal.getsignal(signal.SIGTERM) is not _end:
        signal.raise_signal(signal.SIGTERM)
        return
    raise KeyboardInterrupt
