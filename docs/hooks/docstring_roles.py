"""Shows ``:func:`name` `` of docstrings as code. An extension of griffe."""

from __future__ import annotations

import re

import griffe

_ROLE = re.compile(r":(?:func|meth|class|mod|attr|data|exc):`~?([^`]+)`")


def plain_roles(text: str) -> str:
    """Write roles and double backticks as Markdown has them."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


class DocstringRoles(griffe.Extension):
    """Turns the roles of Sphinx into plain code."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of whatever was found."""
        if obj.docstring is not None:
            obj.docstring.value = plain_roles(obj.docstring.value)
