"""What a model thinks before it answers, told apart from the answer.

Models that think write ``<think>…</think>`` first. Where their chat template opens the block, the
reply begins within it and has the closing tag alone.
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
THINKING_TAGS = frozenset(tag for tags in _TAGS for tag in tags)
_CLOSED_ALONE = re.compile(
    r"^[ \t]*(?:" + "|".join(re.escape(closing) for _, closing in _TAGS) + r")[ \t]*$",
    re.MULTILINE,
)


class ThoughtAndAnswer(NamedTuple):
    """The parts of a reply: ``answer`` is empty where it ends within its ``thinking``."""

    thinking: str
    answer: str


def split_thinking(text: str) -> ThoughtAndAnswer:
    """Take the thinking off the beginning of a reply; a reply without any is its own answer.

    A closing tag without an opening one counts where it stands alone in its line: elsewhere a
    model may be speaking of it.
    """
    thoughts: list[str] = []
    while (block := _leading_block(text)) is not None:
        thoughts.append(block.thinking)
        text = block.answer
    if not thoughts and (closed := _CLOSED_ALONE.search(text)) is not None:
        thoughts.append(text[: closed.start()].strip())
        text = text[closed.end() :].lstrip()
    return ThoughtAndAnswer("\n\n".join(filter(None, thoughts)), text)


def empty_block_length(text: str) -> int:
    """Return how many characters a leading block with nothing in it takes, spaces after included.

    The opening tag may be missing, since a prompt may end with it. 0 where there is no such block.
    """
    for opening, closing in _TAGS:
        pattern = rf"\s*(?:{re.escape(opening)})?\s*{re.escape(closing)}\s*"
        if (found := re.match(pattern, text)) is not None:
            return found.end()
    return 0


def opened_tags(prompt: str) -> tuple[str, str] | None:
    """Return the tags of the thinking that a prompt ends with having opened, if it does."""
    end = prompt.rstrip()
    return next((tags for tags in _TAGS if end.endswith(tags[0])), None)


def _leading_block(text: str) -> ThoughtAndAnswer | None:
    start = text.lstrip()
    for opening, closing in _TAGS:
        if start.startswith(opening):
            thinking, _, answer = start.removeprefix(opening).partition(closing)
            return ThoughtAndAnswer(thinking.strip(), answer.lstrip())
    return None
