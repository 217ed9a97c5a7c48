"""Who started this process, and by which command."""

from __future__ import annotations

import getpass
import sys

from ratchet.tracking.urls import without_logins


def author() -> str | None:
    """Return the name of the user who runs this process; None if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, in a container
        return None


def command_line() -> list[str]:
    """Return the command that started this process, without logins: it is written down."""
    return [without_logins(argument) for argument in sys.argv]
