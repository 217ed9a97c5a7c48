"""Chats to token ids and back: a model folder's tokenizer and its chat template.

Reads ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja`` directly, which
takes milliseconds, while importing transformers takes seconds; texts and ids are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from ratchet.errors import DataError
from ratchet.language_models.local.chat_template import ChatTemplate, ControlTokens
from ratchet.language_models.reasoning import REASONING_TAGS
from ratchet.language_models.types import ChatMessage
from ratchet.models.folders import read_json

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
"""Default template for models without one."""


class ContextLengthError(DataError):
    """A text is longer than a model's context."""


class ChatTokenizer:
    """The tokenizer in the folder of a chat model.

    Uses the model's chat template, by default ``PLAIN_CHAT_TEMPLATE``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise DataError(
                f"{folder} has no tokenizer.json. Save the model's fast tokenizer there"
                " (AutoTokenizer.from_pretrained(...).save_pretrained(folder))."
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises nothing narrower
            raise DataError(f"{file} cannot be read: {error}") from error
        self._config = read_json(folder / "tokenizer_config.json")
        self._special = {
            name: _token_text(self._config[name])
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if self._config.get(name) is not None
        }
        self.end_ids = self._read_end_ids()
        self._special.setdefault("eos_token", self.token_text(self.end_ids[0]))
        self._templates = self._read_templates()
        self._control = ControlTokens(self._control_texts())
        self._said_by_model = self._control.without(REASONING_TAGS)
        self._control_ids = self._read_control_ids()
        self._longest_token = max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)))

    @property
    def vocabulary(self) -> dict[str, int]:
        """The tokens' ids by name, including added ones."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the chat template supports tools."""
        return any(template.reads("tools") for template in self._templates.values())

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        answer: bool,
        variables: Mapping[str, JsonValue] | None = None,
    ) -> str:
        """Render a chat for the model; with ``answer``, also the prefix of the next message.

        Control tokens in messages are spelled out, so that :meth:`encode` distinguishes them from
        the template's. ``variables`` are passed to the template, e.g. ``enable_thinking``.
        """
        chat: list[dict[str, JsonValue]] = []
        for message in messages:
            control = self._control_in(message)
            written = message.for_template().items()
            escaped = {name: control.spell_out_in(it) for name, it in written}
            chat.append({**escaped, "role": message.role})  # a role is an identifier
        more = {name: self._control.spell_out_in(it) for name, it in (variables or {}).items()}
        given = {**self._special, **more}
        use = "tool_use" if given.get("tools") and "tool_use" in self._templates else "default"
        return self._templates[use].render(chat, answer=answer, variables=given)

    def spell_out(self, message: ChatMessage) -> str:
        """Return a message's text, with its control tokens spelled out.

        Except reasoning tags, which only the model writes.
        """
        return self._control_in(message).spell_out(message.content)

    def _control_in(self, message: ChatMessage) -> ControlTokens:
        return self._said_by_model if message.role == "assistant" else self._control

    def encode(self, text: str, *, most: int | None = None) -> list[int]:
        """Return the ids of a text: control tokens as such, spelled-out ones as text."""
        if most is not None and len(text) > most * self._longest_token:
            raise ContextLengthError(
                f"The prompt has {len(text)} characters; the model's context has {most} tokens"
                f" of at most {self._longest_token} characters. Shorten the messages."
            )
        ids: list[int] = []
        for piece, is_text in self._control.pieces(text):
            if not piece:
                continue
            encode = self._encode_as_text if is_text else self._encode
            if not ids and not is_text:
                ids += encode(piece)
                continue
            # some tokenizers put a space before the first word: start with another line
            newline, after = encode("\n"), encode(f"\n{piece}")
            inside = after[: len(newline)] == newline
            ids += after[len(newline) :] if inside else encode(piece)
        return ids

    def _encode(self, piece: str) -> list[int]:
        # a batch of one: only batches let other threads run concurrently
        ids: list[int] = self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)[0].ids
        if sum(token in self._control_ids for token in ids) <= self._control.count(piece):
            return ids
        # normalisation turned text into a control token, e.g. by lower-casing
        return [id for part in self._control.parted(piece) for id in self._encode_part(part)]

    def _encode_part(self, part: str) -> list[int]:
        control = self._tokenizer.token_to_id(part) if part in self._control.texts else None
        return self._encode_as_text(part) if control is None else [control]

    def _encode_as_text(self, text: str) -> list[int]:
        """Return the ids of a text's words, excluding added tokens."""
        ids = self._word_ids(text)
        if self._control_ids.intersection(
            ids
        ):  # the complete text is a word too: split into letters
            ids = [token for letter in text for token in self._word_ids(letter)]
        if self._control_ids.intersection(ids):
            raise DataError(
                f"{text!r} cannot be sent to this model: its tokenizer reads it as a control token."
                " Remove it from the messages."
            )
        return ids

    def _word_ids(self, text: str) -> list[int]:
        normalizer, splitter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        words = [text] if splitter is None else [w for w, _ in splitter.pre_tokenize_str(text)]
        return [token.id for word in words for token in self._tokenizer.model.tokenize(word)]

    def prompt_ids(
        self,
        messages: Sequence[ChatMessage],
        variables: Mapping[str, JsonValue] | None = None,
        *,
        most: int | None = None,
    ) -> list[int]:
        """Return the ids of a chat up to the start of the assistant's message."""
        return self.encode(self.render(messages, answer=True, variables=variables), most=most)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def token_text(self, token: int) -> str:
        """Return one token's text, including special ones."""
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        return text or self._tokenizer.id_to_token(token) or ""

    def _read_templates(self) -> dict[str, ChatTemplate]:
        """Return the templates by name, including ``default``."""
        sources: dict[str, str] = {"default": PLAIN_CHAT_TEMPLATE}
        configured = self._config.get("chat_template")
        if isinstance(configured, str):
            sources["default"] = configured
        elif isinstance(configured, list):
            sources |= {entry["name"]: entry["template"] for entry in configured}
        for file in self.folder.glob("additional_chat_templates/*.jinja"):
            sources[file.stem] = file.read_text(encoding="utf-8")
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            sources["default"] = file.read_text(encoding="utf-8")
        return {name: ChatTemplate(source) for name, source in sources.items()}

    def _control_texts(self) -> set[str]:
        """Return the texts of control tokens.

        These are the special tokens, and other added tokens that the templates write, ignoring
        spaces.
        """
        written = "\0".join(t for template in self._templates.values() for t in template.literals())
        added = {
            token.content
            for token in self._tokenizer.get_added_tokens_decoder().values()
            if token.special or (token.content in written and not token.content.isspace())
        }
        return added | {self.token_text(end) for end in self.end_ids}

    def _read_control_ids(self) -> set[int]:
        """Return the ids of the control tokens, without the unknown token: any text may have it."""
        unknown = getattr(self._tokenizer.model, "unk_token", self._special.get("unk_token"))
        ids = (self._tokenizer.token_to_id(text) for text in self._control.texts - {unknown})
        return {*self.end_ids, *(token for token in ids if token is not None)}

    def _read_end_ids(self) -> tuple[int, ...]:
        """Return the ids that end a message, from the first file that names them."""
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


def _token_text(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])
