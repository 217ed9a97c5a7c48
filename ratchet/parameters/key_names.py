"""Names of keys: where a key is found, never the key itself, since names are written everywhere."""

from __future__ import annotations

import re

SECRET_PREFIX = "prefect-secret:"
"""Before the name of a secret block of Prefect."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_BLOCK = re.compile(r"[a-z0-9-]+")
_LONGEST_WORD = 15
_SHOWN = 3


def key_name_problem(name: str) -> str | None:
    """Say what is wrong with a name that may be the key itself, without repeating it."""
    if name.startswith(SECRET_PREFIX):
        is_name = _BLOCK.fullmatch(name.removeprefix(SECRET_PREFIX)) is not None
    else:
        words = name.split("_")
        is_long = any(len(w) > _LONGEST_WORD and re.search(r"\d", w) for w in words)
        is_name = _VARIABLE.fullmatch(name) is not None and not is_long
    if is_name:
        return None
    return (
        f"got {name[:_SHOWN]!r}… ({len(name)} letters), expected the name of the environment"
        " variable that holds the key, such as MY_API_KEY (capitals, digits and underscores), or"
        f" {SECRET_PREFIX}BLOCK. A key itself would be written down with the parameters: put it"
        " into the variable; if it was ever saved so, replace it"
    )
