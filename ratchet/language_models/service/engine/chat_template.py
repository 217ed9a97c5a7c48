"""Chat templates, rendered as transformers renders them, without its import of seconds.

They come with models, from wherever these come: they run in Jinja's sandbox, and whatever goes
wrong in one is an error of the chat at hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ratchet.errors import DataError

if TYPE_CHECKING:
    from jinja2.parser import Parser
    from pydantic import JsonValue


class ChatTemplate:
    """How a model's chats are written. A faulty one is told when a chat is written by it."""

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
        """Write a chat; with ``answer``, also how the next message begins.

        Raises
        ------
        DataError
            If the template refuses the chat, or is faulty itself.
        """
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
                f" {type(error).__name__}: {error}. Mend chat_template.jinja in the model's folder,"
                " or write the chat otherwise."
            ) from error

    def reads(self, variable: str) -> bool:
        """Whether the template does anything with what it is given by this name."""
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
    """``{% generation %}``, which tells trainers what the assistant writes: here its content."""

    tags = {"generation"}  # noqa: RUF012 -- as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # the block is a scope of its own, as it is in transformers
        return nodes.Scope(body).set_lineno(line)


def _environment() -> ImmutableSandboxedEnvironment:
    """Make what chat templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Any,  # noqa: ANN401 -- whatever a chat holds
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes what HTML would read."""
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
