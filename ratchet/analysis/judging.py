"""Ask a chat model for verdicts: the same question is asked once, however many messages pose it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from ratchet.analysis.base import Analyser, Verdict
from ratchet.analysis.messages import SpokenMessage
from ratchet.errors import ContentFilterError, PromptTooLongError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.types import ChatMessage, ChatRequest, Completion
from ratchet.seeding import derive_seed

_LETTERS_PER_TOKEN = 4
_LOGGER = logging.getLogger(__name__)


class Client(Protocol):
    """What is asked: a ``ChatClient``, or anything that completes chats."""

    async def complete(self, request: ChatRequest) -> Completion:
        """Ask for a completion."""


@dataclass(frozen=True)
class AnalysisModel:
    """The model that judges, and how it is asked."""

    model_name: str
    endpoint: Endpoint
    temperature: float = 0.0
    max_tokens: int = 300
    seed: int = 0

    def request(self, messages: tuple[ChatMessage, ...]) -> ChatRequest:
        """Make a request."""
        return ChatRequest(
            model=self.model_name,
            messages=messages,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=derive_seed(self.seed, "analysis"),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict, and what it took to get it."""

    verdict: Verdict
    completions: tuple[Completion, ...]


@dataclass(frozen=True)
class Questions:
    """What is to be asked of the model.

    ``requests`` has each different one once, by its hash; ``of_message`` says which hash is the
    question on a message of a file of transcripts.
    """

    analyser: Analyser
    requests: Mapping[str, ChatRequest]
    of_message: Mapping[tuple[str, SpokenMessage], str]

    @classmethod
    def on(
        cls,
        messages: Iterable[tuple[str, SpokenMessage]],
        analyser: Analyser,
        model: AnalysisModel,
    ) -> Questions:
        """Prepare the questions on messages, given with the names of their files.

        Raises
        ------
        PromptTemplateError
            If a prompt can't be made; nothing is asked then.
        """
        requests: dict[str, ChatRequest] = {}
        of_message = {}
        for place in messages:
            request = model.request(analyser.prompt(place[1]))
            digest = request.digest()
            requests[digest] = request
            of_message[place] = digest
        return cls(analyser, requests, of_message)

    def estimate_tokens(self) -> tuple[int, int]:
        """Return the estimated tokens of prompts, and the limit of those of completions."""
        letters = sum(len(m.content) for r in self.requests.values() for m in r.messages)
        limit = sum(request.max_tokens or 0 for request in self.requests.values())
        return letters // _LETTERS_PER_TOKEN, limit

    async def ask(
        self, client: Client, journal: CallJournal, num_workers: int
    ) -> dict[str, Answer]:
        """Ask all of them, so many at once; return answers by the hash of the request.

        Those that are too long for the model have none. All are asked, even if one fails; then the
        first failure is raised, and what was answered lies in the journal.
        """
        slots = asyncio.Semaphore(num_workers)

        async def ask(digest: str, request: ChatRequest) -> Answer:
            async with slots:
                return await _judge(self.analyser, request, digest, client, journal)

        answers = await asyncio.gather(
            *(ask(digest, request) for digest, request in self.requests.items()),
            return_exceptions=True,
        )
        answered: dict[str, Answer] = {}
        for digest, answer in zip(self.requests, answers, strict=True):
            if isinstance(answer, PromptTooLongError):
                _LOGGER.warning("a message is left out: %s", answer)
                continue
            if isinstance(answer, BaseException):
                raise answer
            answered[digest] = answer
        return answered


async def _judge(
    analyser: Analyser, request: ChatRequest, digest: str, client: Client, journal: CallJournal
) -> Answer:
    """Ask, and once more with a reminder if no verdict can be read."""
    completions: list[Completion] = []
    verdict = Verdict(None, "")
    for attempt in range(2):
        asked = request
        try:
            completion = await journal.call(
                f"{digest}/a{attempt}", asked, partial(client.complete, asked)
            )
        except ContentFilterError as error:
            return Answer(Verdict(None, str(error)), tuple(completions))
        except PromptTooLongError:
            if not completions:
                raise
            break  # only the reminder is too long
        completions.append(completion)
        verdict = analyser.read(completion.text)
        if verdict.label is not None:
            break
        told = ChatMessage("assistant", completion.text)
        request = replace(request, messages=(*request.messages, told, analyser.reminder()))
    return Answer(verdict, tuple(completions))
