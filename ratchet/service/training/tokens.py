"""Training files as token sequences with a weight for each token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.errors import DataError
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.language_models.reasoning import empty_block_length, opened_tags, split_reasoning
from ratchet.language_models.types import ChatMessage
from ratchet.models.supervision import TokenSequence


@dataclass(frozen=True, slots=True)
class Preference:
    """A pair of responses, preferred and rejected, each after its prompt."""

    preferred: TokenSequence
    non_preferred: TokenSequence


def read_supervised(
    file: Path, tokenizer: ChatTokenizer, context_length: int
) -> list[TokenSequence]:
    """Read chats to learn their assistant messages.

    Parameters
    ----------
    file
        JSON lines ``{"messages": [...]}``; an assistant's message with ``weight`` 0 is only read.

    Returns
    -------
    list of TokenSequence
        One for each line; more if the chat template renders an earlier message differently after
        another follows, so that each is learned as rendered when it is the last.
    """
    sequences: list[TokenSequence] = []
    for number, line in _lines(file):
        messages, learned = _read_messages(line["messages"])
        for sequence in _chat_sequences(tokenizer, messages, learned):
            sequences.append(_checked(sequence, context_length, file, number))
    return sequences


def read_preferences(file: Path, tokenizer: ChatTokenizer, context_length: int) -> list[Preference]:
    """Read pairs of answers to one prompt, one from each line.

    Parameters
    ----------
    file
        JSON lines with ``input``, ``preferred_output`` and ``non_preferred_output``.
    """
    pairs = []
    for number, line in _lines(file):
        prompt, _ = _read_messages(line["input"]["messages"])
        written = [
            _reply(tokenizer, prompt, _read_messages(line[side])[0][0])
            for side in ("preferred_output", "non_preferred_output")
        ]
        if len({reply.given for reply in written}) > 1:
            # Both sides get the same prompt, even if only one of them has reasoning.
            written = [_Reply("", reply.given + reply.learned) for reply in written]
        sides = []
        for reply in written:
            before = tokenizer.encode(tokenizer.render(prompt, answer=True) + reply.given)
            after = tokenizer.encode(reply.learned)
            weights = (0.0,) * len(before) + (1.0,) * len(after)
            sequence = TokenSequence((*before, *after), weights)
            sides.append(_checked(sequence, context_length, file, number))
        pairs.append(Preference(*sides))
    return pairs


def _lines(file: Path) -> list[tuple[int, Mapping[str, Any]]]:
    texts = file.read_bytes().split(b"\n")  # str.splitlines() also ends lines inside messages
    return [(number, json.loads(text)) for number, text in enumerate(texts, 1) if text.strip()]


def _read_messages(
    raw_messages: Sequence[Mapping[str, Any]],
) -> tuple[list[ChatMessage], list[bool]]:
    """Return the messages, and the indices of those to learn."""
    messages = [
        ChatMessage(_role(m["role"]), _text(m.get("content")), m.get("name")) for m in raw_messages
    ]
    learned = [m["role"] == "assistant" and m.get("weight", 1) != 0 for m in raw_messages]
    return messages, learned


def _role(name: str) -> Any:  # noqa: ANN401 -- the service has checked it
    return "system" if name == "developer" else name


def _text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Return the text of a message, joined if it is in parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content)


def _chat_sequences(
    tokenizer: ChatTokenizer, messages: Sequence[ChatMessage], learned: Sequence[bool]
) -> list[TokenSequence]:
    """Tokenize a chat piece by piece, as during generation."""
    ids: list[int] = []
    weights: list[float] = []
    written = ""
    for index in (i for i, is_learned in enumerate(learned) if is_learned):
        before = tokenizer.render(messages[:index], answer=True)
        if not before.startswith(written):  # an earlier response is rendered differently now
            parts = [
                _chat_sequences(tokenizer, messages[: i + 1], [False] * i + [True])
                for i, is_learned in enumerate(learned)
                if is_learned
            ]
            return [sequence for part in parts for sequence in part]
        reply = _reply(tokenizer, messages[:index], messages[index])
        _extend(ids, weights, tokenizer.encode(before[len(written) :] + reply.given), 0.0)
        _extend(ids, weights, tokenizer.encode(reply.learned), 1.0)
        written = before + reply.given + reply.learned
    return [TokenSequence(tuple(ids), tuple(weights))]


class _Reply(NamedTuple):
    """Text after a prompt: the template's part, and the model's."""

    given: str
    learned: str


def _reply(tokenizer: ChatTokenizer, prompt: Sequence[ChatMessage], reply: ChatMessage) -> _Reply:
    """Split a rendered reply into the template's part and the model's.

    Templates of reasoning models put an empty block before a response without reasoning. The model
    should not write it: it would learn to skip reasoning.
    """
    text = _reply_text(tokenizer, prompt, reply)
    opened = opened_tags(tokenizer.render(prompt, answer=True))
    if split_reasoning(reply.content).answer != reply.content:  # the tags are part of the reply
        if opened is not None and text.startswith(opened[0]):  # and the prompt opens it
            text = text.removeprefix(opened[0]).lstrip("\n")
        return _Reply("", text)
    length = empty_block_length(text)
    if not length and opened is not None:
        return _Reply(f"\n{opened[1]}\n\n", text)
    return _Reply(text[:length], text[length:])


def _reply_text(tokenizer: ChatTokenizer, prompt: Sequence[ChatMessage], reply: ChatMessage) -> str:
    """Return the text after a prompt for this reply, with its end token."""
    before = tokenizer.render(prompt, answer=True)
    rendered = tokenizer.render([*prompt, reply], answer=False)
    if rendered.startswith(before):
        text = rendered[len(before) :]
        ends = [tokenizer.token_text(end) for end in tokenizer.end_ids]
        end_positions = [text.rindex(end) + len(end) for end in ends if end in text]
        if end_positions:
            return text[: max(end_positions)]
    return tokenizer.spell_out(reply) + tokenizer.token_text(tokenizer.end_ids[0])


def _extend(ids: list[int], weights: list[float], more: Sequence[int], weight: float) -> None:
    ids += more
    weights += [weight] * len(more)


def _checked(sequence: TokenSequence, limit: int, file: Path, number: int) -> TokenSequence:
    if len(sequence.ids) > limit:
        raise DataError(
            f"{file.name}, line {number}: has {len(sequence.ids)} tokens, the model's context takes"
            f" {limit}. Shorten the messages or leave the example out."
        )
    return sequence
