"""What people say is text, whatever it looks like: it never becomes a control token.

Control tokens that stand in a text are spelled out before a chat template sees it: a character
that nothing else holds is put between theirs. What then reads as a control token in the written
chat was put there by the template; what is spelled out is encoded as the text that it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

_BETWEEN = "\ufdd0"  # no character, says Unicode, but for programs' own use
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

    def spell_out_in(self, said: JsonValue) -> JsonValue:
        """Spell out the control tokens in all texts of a value."""
        if isinstance(said, str):
            return self.spell_out(said)
        if isinstance(said, list):
            return [self.spell_out_in(item) for item in said]
        if isinstance(said, dict):
            return {self.spell_out(name): self.spell_out_in(item) for name, item in said.items()}
        return said

    def spell_out(self, text: str) -> str:
        """Spell out the control tokens in a text."""
        text = text.replace(_BETWEEN, _REPLACEMENT)
        breaks = {
            place
            for match in self._at_every_place.finditer(text)
            for place in range(match.start() + 1, match.end(1))
        }
        breaks.update(self._torn(text))
        places = [0, *sorted(breaks), len(text)]
        return _BETWEEN.join(text[a:b] for a, b in pairwise(places))

    def _torn(self, text: str) -> Iterator[int]:
        """Where a part of a control token begins or ends the text: its rest may stand beside it.

        Templates take spaces off the ends of a text, so these do not count.
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
        """Part a text into its control tokens and what stands between them."""
        return [part for part in re.split(f"({self._found.pattern})", text) if part]

    def pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """Part a written chat into pieces, and say of each whether it was spelled out."""
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
    """Return a written chat as people read it, nothing spelled out."""
    return text.replace(_BETWEEN, "")


def _any_of(patterns: Iterator[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns) or "(?!)")
