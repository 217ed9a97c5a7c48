"""URLs for files and messages: without credentials, and of MLflow's pages."""

from __future__ import annotations

import re

_LOGIN = re.compile(r"(?<=://)[^/?#\s]+@")  # up to the last @, as clients read it


def without_logins(text: str) -> str:
    """Remove the ``USER:PASSWORD@`` of every URL in a text."""
    return _LOGIN.sub("", text)


def within_page(url: str, path: str) -> str:
    """Return the URL of a path below a page's URL, with its query moved to the end."""
    page, question, query = url.partition("?")
    return f"{page}/{path}{question}{query}"


def mlflow_page(server: str, path: str = "experiments") -> str:
    """Return the URL of a page of MLflow's UI in the view for model training.

    Browsers open the view for language-model apps by default.
    """
    return f"{without_logins(server).rstrip('/')}/#/{path}?workflowType=machine_learning"
