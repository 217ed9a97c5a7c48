"""Message text never becomes a control token.

Control tokens in a text are spelled out before a chat template reads it: a character that occurs
nowhere else is inserted between theirs. Any control token in the rendered chat was then written by
the template; spelled-out ones are encoded as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

_BETWEEN = "\ufdd0"  # a noncharacter that Unicode reserves for internal use
_REPLACEMENT = "\ufffd"


class ControlTokens:
    """The control tokens of a tokenizer, by their texts."""

    def __init__(self, texts: Collection[str]) -> None:
        self.texts = frozenset(text for text in texts if len(text) > 1)
        longest_first = sorted(self.texts, key=lambda text: (-len(text), text))
        self._found = _any_of(re.escape(text) for text in longest_first)
        self._at_every_place = re.compile(f"(?=({self._found.pattern}))")
        self._spelled = _any_of(_BETWEEN.join(map(re.escape, text)) for text in longest_first)
        self._begun = {text[:n] for text in self.texts for n in range(2, len(text))}
        self._ended = {text[n:] for text in self.texts for n in range(1, len(text) - 1)}

    def spell_out_in(self, value: JsonValue) -> JsonValue:
        """Spell out the control tokens in all texts of a value."""
        if isinstance(value, str):
            return self.spell_out(value)
        if isinstance(value, list):
            return [self.spell_out_in(item) for item in value]
        if isinstance(value, dict):
            return {self.spell_out(name): self.spell_out_in(item) for name, item in value.items()}
        return value

    def spell_out(self, text: str) -> str:
        """Spell out the control tokens in a text."""
        text = text.replace(_BETWEEN, _REPLACEMENT)
        breaks = {
            index
            for match in self._at_every_place.finditer(text)
            for index in range(match.start() + 1, match.end(1))
        }
        breaks.update(self._torn(text))
        bounds = [0, *sorted(breaks), len(text)]
        return _BETWEEN.join(text[a:b] for a, b in pairwise(bounds))

    def _torn(self, text: str) -> Iterator[int]:
        """Return partial control tokens at the ends of the text: the rest may be adjacent.

        Templates strip spaces from the ends of a text, so these do not count.
        """
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        longest = max(map(len, self.texts), default=0)
        for length in range(2, min(longest, end - start + 1)):
            if text[start : start + length] in self._ended:
                yield start
            if text[end - length : end] in self._begun:
                yield end

    def count(self, text: str) -> int:
        """Count the control tokens in a text."""
        return sum(1 for _ in self._found.finditer(text))

    def parted(self, text: str) -> list[str]:
        """Split a text at its control tokens, which are included."""
        return [part for part in re.split(f"({self._found.pattern})", text) if part]

    def pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """Split a rendered chat into pieces, and return for each whether it was spelled out."""
        at = 0
        for match in self._spelled.finditer(text):
            yield from ((piece, False) for piece in text[at : match.start()].split(_BETWEEN))
            yield match[0].replace(_BETWEEN, ""), True
            at = match.end()
        yield from ((piece, False) for piece in text[at:].split(_BETWEEN))

    def without(self, texts: Collection[str]) -> ControlTokens:
        """Return the others."""
        return self if self.texts.isdisjoint(texts) else ControlTokens(self.texts - set(texts))


def joined(text: str) -> str:
    """Return a rendered chat as readable text, with no token spelled out."""
    return text.replace(_BETWEEN, "")


def _any_of(patterns: Iterator[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns) or "(?!)")
