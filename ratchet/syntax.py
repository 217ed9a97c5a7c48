"""Parsing of Python source in several threads."""

from __future__ import annotations

import ast
import threading

PARSER_LOCK = threading.Lock()
"""Held while a thread parses; also by callers of libraries that parse."""
_ATTEMPTS = 20


def parse_python(source: str | bytes) -> ast.Module:
    """Parse Python source.

    CPython before 3.11.8 and 3.12.2 counts the depth of all threads' trees in one variable, and
    raises SystemError if they interleave (its issue 106905). Other packages parse without the lock.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            with PARSER_LOCK:
                return ast.parse(source)
        except SystemError:
            continue
    with PARSER_LOCK:
        return ast.parse(source)
