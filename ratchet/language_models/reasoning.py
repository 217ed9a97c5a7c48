"""Reasoning that a model writes before its answer, split from the answer.

Reasoning models write ``<think>…</think>`` first. If the chat template opens the block, the reply
starts inside it and has only the closing tag.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
)
REASONING_TAGS = frozenset(tag for tags in _TAGS for tag in tags)
_CLOSED_ALONE = re.compile(
    r"^[ \t]*(?:" + "|".join(re.escape(closing) for _, closing in _TAGS) + r")[ \t]*$",
    re.MULTILINE,
)


class ReasoningAndAnswer(NamedTuple):
    """The parts of a reply; ``answer`` is empty if the reply ends within its ``thinking``."""

    thinking: str
    answer: str


def split_reasoning(text: str) -> ReasoningAndAnswer:
    """Split the reasoning from the start of a reply; without reasoning, all is the answer.

    A closing tag without an opening one counts only on a separate line: elsewhere the text may
    mention the tag.
    """
    thoughts: list[str] = []
    while (block := _leading_block(text)) is not None:
        thoughts.append(block.thinking)
        text = block.answer
    if not thoughts and (closed := _CLOSED_ALONE.search(text)) is not None:
        thoughts.append(text[: closed.start()].strip())
        text = text[closed.end() :].lstrip()
    return ReasoningAndAnswer("\n\n".join(filter(None, thoughts)), text)


def empty_block_length(text: str) -> int:
    """Return the length of a leading empty block, including trailing spaces.

    The opening tag may be missing, since a prompt may end with it. 0 if there is no such block.
    """
    for opening, closing in _TAGS:
        pattern = rf"\s*(?:{re.escape(opening)})?\s*{re.escape(closing)}\s*"
        if (match := re.match(pattern, text)) is not None:
            return match.end()
    return 0


def opened_tags(prompt: str) -> tuple[str, str] | None:
    """Return the tags of the reasoning block that a prompt's end opens, if any."""
    end = prompt.rstrip()
    return next((tags for tags in _TAGS if end.endswith(tags[0])), None)


def _leading_block(text: str) -> ReasoningAndAnswer | None:
    start = text.lstrip()
    for opening, closing in _TAGS:
        if start.startswith(opening):
            thinking, _, answer = start.removeprefix(opening).partition(closing)
            return ReasoningAndAnswer(thinking.strip(), answer.lstrip())
    return None
