"""URLs as they may be written down and shown: without whoever logs in there."""

from __future__ import annotations

import re

_LOGIN = re.compile(r"(?<=://)[^/?#\s]+@")  # up to the last @, as clients read it


def without_logins(text: str) -> str:
    """Leave out the ``USER:PASSWORD@`` of every URL in a text."""
    return _LOGIN.sub("", text)


def within_page(url: str, path: str) -> str:
    """Return the address of what a page has at a path; what the page is asked for stays behind."""
    page, question, asked = url.partition("?")
    return f"{page}/{path}{question}{asked}"
