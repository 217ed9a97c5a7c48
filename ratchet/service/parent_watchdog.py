"""Processes that end with their parent or their users, even if those are killed.

A trainer ends with its service: it reads a pipe that the kernel closes when the service dies. An
embedded service ends with its last user: each user holds a shared lock, which the kernel releases
when the user dies.
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
_GRACE_SECONDS = 5.0  # for a clean shutdown


def exit_with_parent() -> None:
    """End this process when the other side of its standard input is closed."""

    def watch() -> None:
        descriptor = sys.stdin.fileno()  # the file object could not be closed while it is read
        while os.read(descriptor, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def register_user(path: Path) -> BinaryIO:
    """Register this process as a user until the returned file is closed or it dies.

    The lock is created if missing. Waits while an unused service is ending.
    """
    file = path.open("ab")
    fcntl.flock(file.fileno(), fcntl.LOCK_SH)
    return file


def exit_without_users(path: Path, leave: threading.Event) -> None:
    """Set ``leave`` once no user holds the lock, and end the process soon after.

    The starter of this process holds the lock. New users wait until the process has ended.
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
                os._exit(0)  # the lock is held until here

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
