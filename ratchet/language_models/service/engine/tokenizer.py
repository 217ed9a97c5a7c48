"""From chats to token ids and back: a model folder's tokenizer and its chat template.

Reads ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja`` by itself, which
takes milliseconds where importing transformers takes seconds; the texts and ids are the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from ratchet.errors import DataError
from ratchet.language_models.types import ChatMessage

if TYPE_CHECKING:
    from pydantic import JsonValue

PLAIN_CHAT_TEMPLATE = """\
{%- if bos_token -%}{{- bos_token -}}{%- endif -%}
{%- for message in messages -%}
{{- message['role'] + (' (' + message['name'] + ')' if message['name'] else '') + ':\\n' -}}
{{- message['content'] + eos_token + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'assistant:\\n' -}}{%- endif -%}
"""
"""How a chat is written for a model that brings no template of its own."""


class ChatTokenizer:
    """The tokenizer in the folder of a model that chats.

    A model's own chat template is used; one that has none gets ``PLAIN_CHAT_TEMPLATE``.

    Raises
    ------
    DataError
        If it has no ``tokenizer.json``, or nothing names the token that ends a message.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise DataError(
                f"{folder} has no tokenizer.json. Save the model's fast tokenizer there"
                " (AutoTokenizer.from_pretrained(...).save_pretrained(folder))."
            )
        self._tokenizer = Tokenizer.from_file(str(file))
        self._config = read_json(folder / "tokenizer_config.json")
        self._special = {
            name: _token_text(self._config[name])
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if self._config.get(name) is not None
        }
        self.end_ids = self._read_end_ids()
        self._special.setdefault("eos_token", self.token_text(self.end_ids[0]))
        self.chat_template = self._read_template()
        self._template = _environment().from_string(self.chat_template)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        answer: bool,
        variables: Mapping[str, JsonValue] | None = None,
    ) -> str:
        """Write a chat as the model reads it; with ``answer``, also how the next message begins.

        ``variables`` are what the template is given besides, e.g. ``enable_thinking``.

        Raises
        ------
        DataError
            If the template refuses the chat, e.g. because of the order of the roles.
        """
        chat = [
            {"role": m.role, "content": m.content} | ({"name": m.name} if m.name else {})
            for m in messages
        ]
        try:
            return self._template.render(
                **self._special, **(variables or {}), messages=chat, add_generation_prompt=answer
            )
        except TemplateError as error:
            raise DataError(f"The model's chat template refuses the chat: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which special tokens are read as such."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def prompt_ids(
        self, messages: Sequence[ChatMessage], variables: Mapping[str, JsonValue] | None = None
    ) -> list[int]:
        """Return the ids of a chat up to where the assistant begins to write."""
        return self.encode(self.render(messages, answer=True, variables=variables))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def token_text(self, token: int) -> str:
        """Return one token's text, special ones as they are written."""
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        return text or self._tokenizer.id_to_token(token) or ""

    def _read_template(self) -> str:
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        template = self._config.get("chat_template")
        if isinstance(template, list):  # several, by name
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        return template if isinstance(template, str) else PLAIN_CHAT_TEMPLATE

    def _read_end_ids(self) -> tuple[int, ...]:
        """The ids after which a message is over, from whichever file names them first."""
        for name in ("generation_config.json", "config.json"):
            file = self.folder / name
            ends = read_json(file).get("eos_token_id") if file.is_file() else None
            if ends is not None:
                return tuple(ends) if isinstance(ends, list) else (int(ends),)
        text = self._special.get("eos_token")
        end = None if text is None else self._tokenizer.token_to_id(text)
        if end is None:
            raise DataError(
                f"{self.folder}: neither config.json nor tokenizer_config.json names the token"
                " that ends a message (eos_token_id). Add it."
            )
        return (int(end),)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises
    ------
    DataError
        If the file is not there or holds something else.
    """
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: got {type(content).__name__}, expected a JSON object.")
    return content


def _token_text(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _environment() -> ImmutableSandboxedEnvironment:
    """Make what chat templates are written for: transformers' environment."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:  # noqa: ANN401 -- whatever a chat holds
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
