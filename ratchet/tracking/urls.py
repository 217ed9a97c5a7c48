"""URLs as they may be written down and shown: without whoever logs in there."""

from __future__ import annotations

import re

_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")


def without_logins(text: str) -> str:
    """Leave out the ``USER:PASSWORD@`` of every URL in a text."""
    return _LOGIN.sub("", text)
