"""How messages become tokens: as plain text, or by a chat template; what is there is kept.

Neither tokenizes again what a model wrote: only what stands behind it is added.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.language_models.types import ChatMessage

if TYPE_CHECKING:
    from ratchet.language_models.service.engine.tokenizer import ChatTokenizer


class PromptFormat(ABC):
    """Writes conversations for a model's tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.tokenizer = tokenizer

    @abstractmethod
    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the ids of a conversation up to where the model writes."""

    @abstractmethod
    def more(
        self, before: Sequence[ChatMessage], reply: str, new: Sequence[ChatMessage]
    ) -> list[int] | None:
        """Return the ids between a reply, with its end token, and where the model writes next.

        None if what was before reads otherwise now, so that it must be written anew.
        """

    def reply(self, text: str) -> list[int]:
        """Return the ids of a reply that somebody else has thought up, with its end token."""
        said = self.tokenizer.spell_out(ChatMessage("assistant", text))
        return [*self.tokenizer.encode(said), self.tokenizer.end_ids[0]]


class TextFormat(PromptFormat):
    """One message behind the other, with nothing in between."""

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the ids of what they say."""
        spelled = (self.tokenizer.spell_out(message) for message in messages)
        return [token for text in spelled for token in self.tokenizer.encode(text)]

    def more(
        self, before: Sequence[ChatMessage], reply: str, new: Sequence[ChatMessage]
    ) -> list[int] | None:
        """Return the ids of what is new."""
        return self.prompt(new)


class ChatFormat(PromptFormat):
    """By the chat template of the model."""

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the ids of the chat, with how the next message begins."""
        return self.tokenizer.prompt_ids(messages)

    def more(
        self, before: Sequence[ChatMessage], reply: str, new: Sequence[ChatMessage]
    ) -> list[int] | None:
        """Return the ids of what the template writes behind the reply's end token."""
        said = ChatMessage("assistant", reply)
        written = self.tokenizer.render(before, answer=True) + self.tokenizer.spell_out(said)
        now = self.tokenizer.render([*before, said, *new], answer=True)
        if not now.startswith(written):
            return None  # the template shortens or moves what was said
        rest = now[len(written) :]
        ends = (self.tokenizer.token_text(end) for end in self.tokenizer.end_ids)
        end = next((end for end in ends if rest.startswith(end)), "")
        return self.tokenizer.encode(rest.removeprefix(end))


def prompt_format(tokenizer: ChatTokenizer, *, chat: bool) -> PromptFormat:
    """Return the format: by the chat template, or as plain text."""
    return ChatFormat(tokenizer) if chat else TextFormat(tokenizer)
