"""Comparison of a page's output with a command's.

A line with only … stands for any lines, and … within a line for any text. Run ids, durations,
paths, progress and the width of tables are ignored. A number may have more digits than the page
shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import unified_diff

ANY = "…"
_IGNORED = (
    (re.compile(r"^\w+ · .*$", re.MULTILINE), ""),  # progress
    (re.compile(r"(?<=-)[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"\b\d+(\.\d+)? (s|min|h)\b(?: \d+ (s|min)\b)?"), "TIME"),  # also 1 min 3 s
    (re.compile(r"(?<![\w.:/])/[\w./-]+/(?=runs/)"), ""),  # folder of the runs
    (re.compile(r"─+"), "─"),
    (re.compile(r"[ \t]+"), " "),
)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def difference(shown: str, printed: str, tolerance: float = 0.0) -> str | None:
    """Return how a page's output differs from the printed one; None if it does not."""
    expected, lines = _lines(shown), _lines(printed)
    position = 0
    for part in _parts(expected):
        starts = range(position, len(lines) - len(part) + 1)
        fits = (start for start in starts if _all_fit(part, lines[start:], tolerance))
        if (start := next(fits, None)) is None:
            return "\n".join(unified_diff(expected, lines, "the page", "printed", lineterm=""))
        position = start + len(part)
    return None


def _lines(text: str) -> list[str]:
    for pattern, replacement in _IGNORED:
        text = pattern.sub(replacement, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def _parts(lines: Sequence[str]) -> list[list[str]]:
    """Split lines at …"""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line == ANY:
            parts.append([])
        else:
            parts[-1].append(line)
    return [part for part in parts if part]


def _all_fit(part: Sequence[str], lines: Sequence[str], tolerance: float) -> bool:
    return all(_fits(shown, line, tolerance) for shown, line in zip(part, lines, strict=False))


def _fits(shown: str, printed: str, tolerance: float) -> bool:
    texts = [re.escape(text).replace(ANY, ".*") for text in _NUMBER.split(shown)]
    match = re.fullmatch(rf"({_NUMBER.pattern})".join(texts), printed)
    if match is None:
        return False
    pairs = zip(_NUMBER.findall(shown), match.groups(), strict=True)
    return all(_is_near(number, other, tolerance) for number, other in pairs)


def _is_near(shown: str, printed: str, tolerance: float) -> bool:
    """Return whether the numbers are equal in the digits that the page shows."""
    digits = len(shown.partition(".")[2])
    least = 0.501 * 10.0**-digits if "." in printed else 0.0
    a, b = (float(number.replace(",", "")) for number in (shown, printed))
    return abs(a - b) <= max(least, tolerance)
