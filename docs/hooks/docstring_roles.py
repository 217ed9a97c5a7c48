"""Griffe extension: docstring roles as code, and the exports of packages with lazy names."""

from __future__ import annotations

import ast
import re

import griffe

from ratchet.lazy import reexports

_ROLE = re.compile(r":(?:func|meth|class|mod|attr|data|exc):`~?([^`]+)`")


def plain_roles(text: str) -> str:
    """Convert roles and double backticks to Markdown."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


class DocstringRoles(griffe.Extension):
    """Extension that converts Sphinx roles to code and reads lazy exports."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = plain_roles(obj.docstring.value)

    def on_module_members(self, *, node: object, mod: griffe.Module, **_: object) -> None:
        """Set the exports of a package that imports its names on first use."""
        if isinstance(node, ast.Module) and (names := reexports(node.body)):
            mod.exports = sorted(names)
