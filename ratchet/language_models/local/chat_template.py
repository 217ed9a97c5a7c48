"""Chat templates, rendered as transformers does, without its slow import.

They come with models, which are untrusted: they run in Jinja's sandbox, and their errors are errors
of the chat.

Message text never becomes a control token. Control tokens in a text are spelled out before a chat
template reads it: a character that occurs nowhere else is inserted between theirs. Any control
token in the rendered chat was then written by the template; spelled-out ones are encoded as plain
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ratchet.errors import DataError

if TYPE_CHECKING:
    from jinja2.parser import Parser
    from pydantic import JsonValue

_BETWEEN = "\ufdd0"  # a noncharacter that Unicode reserves for internal use
_REPLACEMENT = "\ufffd"


class ChatTemplate:
    """A model's chat template. Faults are reported when a chat is rendered."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._compiled: Template | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, JsonValue]],
        *,
        answer: bool,
        variables: Mapping[str, JsonValue],
    ) -> str:
        """Render a chat; with ``answer``, also the prefix of the next message."""
        given = {"tools": None, "documents": None, **variables}
        try:
            if self._compiled is None:
                self._compiled = _environment().from_string(self.source)
            return self._compiled.render(given, messages=messages, add_generation_prompt=answer)
        except TemplateError as error:
            raise DataError(f"The model's chat template refuses the chat: {error}") from error
        except Exception as error:  # the template's own code
            raise DataError(
                "The model's chat template fails on the chat:"
                f" {type(error).__name__}: {error}. Fix chat_template.jinja in the model's folder,"
                " or change the chat."
            ) from error

    def reads(self, variable: str) -> bool:
        """Whether the template reads the variable of this name."""
        try:
            return variable in find_undeclared_variables(_environment().parse(self.source))
        except TemplateError:
            return False

    def literals(self) -> list[str]:
        """Return the texts that the template itself writes or compares with."""
        try:
            tree = _environment().parse(self.source)
        except TemplateError:
            return []
        texts = [node.data for node in tree.find_all(nodes.TemplateData)]
        return texts + [n.value for n in tree.find_all(nodes.Const) if isinstance(n.value, str)]


class _Generation(Extension):
    """``{% generation %}``, which marks the assistant's text for trainers: here its content."""

    tags = {"generation"}  # noqa: RUF012 -- as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # the block has a separate scope, as in transformers
        return nodes.Scope(body).set_lineno(line)


def _environment() -> ImmutableSandboxedEnvironment:
    """Create Jinja's environment for chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Any,  # noqa: ANN401 -- any value in a chat
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces Jinja's filter, which escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


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
