"""Parser of a chat model's reply: a decision, or a text for each channel.

Pure functions; agents call ``parse_completion`` on every reply and retry invalid ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ratchet.protocols.decision_scales import ACCEPT_REJECT, DecisionScale

NO_DECISION = 2

_EMPHASIS = str.maketrans("", "", "*_`")
_SHOWN_LETTERS = 60


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """A parsed reply: ``messages`` by channel, and ``decision`` 0, 1 or 2 (none).

    ``confidence`` of a decision is above 0 and at most 1; ``reason`` explains why a reply is
    invalid.
    """

    valid: bool
    messages: Mapping[str, str] = field(default_factory=dict)
    decision: int = NO_DECISION
    confidence: float = 1.0
    reason: str = ""


def parse_completion(
    text: str,
    headers: Mapping[str, str],
    may_decide: bool,
    scale: DecisionScale = ACCEPT_REJECT,
) -> ParsedCompletion:
    """Parse a reply.

    Parameters
    ----------
    headers
        Channel → the header of its text, for every channel in which it must write.
    may_decide
        Whether ``Decision:`` with an answer of the scale is allowed.

    Returns
    -------
    ParsedCompletion
        Only a decision; or, after a header at the start of a line, a text for each channel (text
        before the first header is ignored); else invalid. The middle of a scale is no decision,
        with empty texts. Case, spaces, a full stop after a decision and Markdown emphasis don't
        matter. A decision together with other text is invalid if decisions are allowed, since it is
        ambiguous.
    """
    if may_decide:
        degree = read_degree(text, scale)
        if degree == 0:
            return ParsedCompletion(valid=True, messages=dict.fromkeys(headers, ""))
        if degree is not None:
            return ParsedCompletion(valid=True, decision=int(degree > 0), confidence=abs(degree))
        if any(read_degree(line, scale) is not None for line in text.splitlines()):
            return ParsedCompletion(valid=False, reason="a decision beside other text")
    if not headers:
        expected = "a decision" if may_decide else "nothing"
        return ParsedCompletion(valid=False, reason=f"got {_shown(text)}, expected {expected}")
    messages = _split(text, headers)
    missing = [header for channel, header in headers.items() if not messages.get(channel)]
    if missing:
        return ParsedCompletion(
            valid=False, reason=f"got {_shown(text)}, expected text after {', '.join(missing)}"
        )
    return ParsedCompletion(valid=True, messages={c: messages[c] for c in headers})


def read_degree(text: str, scale: DecisionScale = ACCEPT_REJECT) -> float | None:
    """Return the degree of a ``Decision:`` line, from -1 to 1; None for other text."""
    match = _decision_pattern(scale).fullmatch(text.translate(_EMPHASIS).strip())
    return scale.degrees[" ".join(match[1].lower().split())] if match else None


@lru_cache(maxsize=16)
def _decision_pattern(scale: DecisionScale) -> re.Pattern[str]:
    answers = "|".join(r"\s+".join(map(re.escape, answer.split())) for answer in scale.degrees)
    return re.compile(rf"decision\s*:\s*({answers})\s*\.?", re.IGNORECASE)


def _shown(text: str) -> str:
    if not text.strip():
        return "an empty reply"
    return repr(text if len(text) <= _SHOWN_LETTERS else text[:_SHOWN_LETTERS] + "…")


def _split(text: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the text after each header, by channel; a repeated header continues its text."""
    channels = list(headers)
    matches = list(_pattern(tuple(headers.values())).finditer(text))
    starts = [match.start() for match in matches] + [len(text)]
    parts: dict[str, list[str]] = {}
    for match, end in zip(matches, starts[1:], strict=True):
        assert match.lastgroup is not None  # each choice has one group, which always matches
        # The group of a header's marks is named by the header's index.
        channel = channels[int(match.lastgroup.removeprefix("marks"))]
        parts.setdefault(channel, []).append(text[match.end() : end].strip())
    return {channel: "\n".join(filter(None, texts)) for channel, texts in parts.items()}


@lru_cache(maxsize=256)
def _pattern(headers: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of headers at the start of a line, longer ones first."""
    order = sorted(range(len(headers)), key=lambda index: -len(headers[index]))
    choices = [_header_pattern(headers[index], f"marks{index}") for index in order]
    return re.compile(r"^[ \t>#]*(?:" + "|".join(choices) + ")", re.IGNORECASE | re.MULTILINE)


def _header_pattern(header: str, group: str) -> str:
    """Allow a header in Markdown emphasis, with or without its colon."""
    words, has_colon = header.strip().removesuffix(":").strip(), header.strip().endswith(":")
    text = "[ _]+".join(re.escape(word) for word in re.split(r"[\s_]+", words))
    marks, closing = f"(?P<{group}>[*_`]{{0,3}})", f"(?:(?P={group}))?"
    colon = f"[ \\t]*:{closing}" if has_colon else ""
    return f"{marks}{text}{closing}{colon}"
