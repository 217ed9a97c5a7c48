"""Chat templates, rendered as transformers does, without its slow import.

They come with models, which are untrusted: they run in Jinja's sandbox, and their errors are errors
of the chat.
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
        """Render a chat; with ``answer``, also the prefix of the next message.

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
