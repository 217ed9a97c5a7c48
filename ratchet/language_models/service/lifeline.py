"""Processes that end with those who need them, however these end.

A trainer ends with its service: it reads a pipe that the kernel closes when the service dies.
An embedded service ends with the last process that uses it: each user holds a shared lock, which
the kernel gives back when the user dies.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

_POLL_SECONDS = 0.25
_GRACE_SECONDS = 5.0  # for an orderly end


def leave_with_parent() -> None:
    """End this process when the other side of its standard input is closed."""

    def watch() -> None:
        descriptor = sys.stdin.fileno()  # the file object could not be closed while it is read
        while os.read(descriptor, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def hold_as_user(path: Path) -> BinaryIO:
    """Count this process among the users until the returned file is closed or it dies.

    The lock is made when missing. Waits while a service that nobody used is leaving.
    """
    file = path.open("ab")
    fcntl.flock(file.fileno(), fcntl.LOCK_SH)
    return file


def leave_without_users(path: Path, leave: threading.Event) -> None:
    """Set ``leave`` once nobody holds the users' lock, and end the process soon after.

    The lock is held by whoever started this process. From then on newcomers wait until it has
    ended.
    """

    def watch() -> None:
        file = path.open("ab")
        while True:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(_POLL_SECONDS)
            else:
                leave.set()
                time.sleep(_GRACE_SECONDS)
                os._exit(0)  # the lock has stayed ours until here

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
