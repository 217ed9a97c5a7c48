"""Ids of answers: a random beginning, drawn once, and a number.

Entropy is asked of the kernel, which takes its time while an engine computes beside.
"""

from __future__ import annotations

import itertools
import secrets

_BEGINNING = secrets.token_hex(8)
_NUMBERS = itertools.count(1)


def answer_id(kind: str) -> str:
    """Return a new id such as "chatcmpl-9f0c…"; no other process, and no other call, has it."""
    return f"{kind}{_BEGINNING}{next(_NUMBERS):08x}"
