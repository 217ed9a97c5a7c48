"""URLs without credentials, for files and messages."""

from __future__ import annotations

import re

_LOGIN = re.compile(r"(?<=://)[^/?#\s]+@")  # up to the last @, as clients read it


def without_logins(text: str) -> str:
    """Remove the ``USER:PASSWORD@`` of every URL in a text."""
    return _LOGIN.sub("", text)


def within_page(url: str, path: str) -> str:
    """Return the URL of a path below a page's URL, with its query moved to the end."""
    page, question, asked = url.partition("?")
    return f"{page}/{path}{question}{asked}"
