"""Plain values as YAML that people like to read: text of several lines is shown as such.

Three times as fast as PyYAML with libyaml on transcripts, which are long texts in a simple
structure, and it shows code with spaces at the ends of lines as lines, too. Any YAML library
reads back the same values.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias

from ratchet.errors import DataError

_Parts: TypeAlias = dict[str, Any] | list[Any]
Plain: TypeAlias = _Parts | str | float | bool | None

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
# What YAML doesn't print as it is, and what some readers take for the end of a line.
_UNPRINTABLE = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def to_yaml(value: Plain) -> str:
    """Return plain values as YAML, with a line end at the end.

    Parameters
    ----------
    value
        Dictionaries with text as keys, lists, text, numbers, booleans and None.

    Raises
    ------
    DataError
        If there is another value.
    """
    lines: list[str] = []
    if value and isinstance(value, dict | list):
        _add_parts(lines, value, "", "")
    else:
        lines.append(_scalar(value, "  "))
    return "\n".join(lines) + "\n"


def _add_parts(lines: list[str], parts: _Parts, first: str, pad: str) -> None:
    """Add the lines of a dictionary or list that isn't empty.

    ``first`` stands before the first line, ``pad``, which is as long, before the others.
    """
    start, inner_pad = first, pad + "  "
    if isinstance(parts, dict):
        for key, value in parts.items():
            if value and isinstance(value, dict | list):
                lines.append(f"{start}{_quoted(key)}:")
                deeper = inner_pad if isinstance(value, dict) else pad
                _add_parts(lines, value, deeper, deeper)
            else:
                lines.append(f"{start}{_quoted(key)}: {_scalar(value, inner_pad)}")
            start = pad
        return
    for value in parts:
        if value and isinstance(value, dict | list):
            _add_parts(lines, value, f"{start}- ", inner_pad)
        else:
            lines.append(f"{start}- {_scalar(value, inner_pad)}")
        start = pad


def _scalar(value: Plain, pad: str) -> str:
    """Write a value down that goes on its key's line; further lines get the padding."""
    if isinstance(value, str):
        return _block(value, pad) if _can_be_block(value) else _quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(value)
    if value in ({}, []):
        return str(value)
    raise DataError(f"got {value!r} of type {type(value).__name__}, expected plain values.")


def _can_be_block(text: str) -> bool:
    if "\n" not in text or text[0] in " \t\n" or text.endswith("\n\n"):
        return False
    return not _UNPRINTABLE.search(text)


def _block(text: str, pad: str) -> str:
    sign = "|" if text.endswith("\n") else "|-"
    lines = text.removesuffix("\n").split("\n")
    return "\n".join([sign, *(pad + line if line else "" for line in lines)])


def _quoted(text: str) -> str:
    if _WORD.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\U{ord(match[0]):08x}", quoted)


def _float(value: float) -> str:
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    digits, sign, exponent = repr(float(value)).partition("e")
    return digits + (".0" if sign and "." not in digits else "") + sign + exponent
