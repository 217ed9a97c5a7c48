"""LLM judge: request verdicts from a chat model, once per distinct request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from ratchet.analysis.base import Analyser, Verdict
from ratchet.analysis.messages import TranscriptMessage
from ratchet.errors import ContentFilterError, PromptTooLongError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.types import ChatMessage, ChatRequest, Completion
from ratchet.seeding import derive_seed

_LETTERS_PER_TOKEN = 4
_LOGGER = logging.getLogger(__name__)


class Client(Protocol):
    """A ``ChatClient``, or any object that completes chats."""

    async def complete(self, request: ChatRequest) -> Completion:
        """Request a completion."""


@dataclass(frozen=True)
class AnalysisModel:
    """The judge model and its sampling parameters."""

    model_name: str
    endpoint: Endpoint
    temperature: float = 0.0
    max_tokens: int = 300
    seed: int = 0

    def request(self, messages: tuple[ChatMessage, ...]) -> ChatRequest:
        """Build a request."""
        return ChatRequest(
            model=self.model_name,
            messages=messages,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=derive_seed(self.seed, "analysis"),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict and the completions used to obtain it."""

    verdict: Verdict
    completions: tuple[Completion, ...]


@dataclass(frozen=True)
class Questions:
    """Requests on messages.

    ``requests`` maps hashes to distinct requests, ``of_message`` maps (file, message) to the hash
    of its request.
    """

    analyser: Analyser
    requests: Mapping[str, ChatRequest]
    of_message: Mapping[tuple[str, TranscriptMessage], str]

    @classmethod
    def on_messages(
        cls,
        messages: Iterable[tuple[str, TranscriptMessage]],
        analyser: Analyser,
        model: AnalysisModel,
    ) -> Questions:
        """Build the requests on messages, given with the names of their files."""
        requests: dict[str, ChatRequest] = {}
        of_message = {}
        for key in messages:
            request = model.request(analyser.prompt(key[1]))
            digest = request.digest()
            requests[digest] = request
            of_message[key] = digest
        return cls(analyser, requests, of_message)

    def estimate_tokens(self) -> tuple[int, int]:
        """Return the estimated prompt tokens and the upper bound on completion tokens."""
        letters = sum(len(m.content) for r in self.requests.values() for m in r.messages)
        limit = sum(request.max_tokens or 0 for request in self.requests.values())
        return letters // _LETTERS_PER_TOKEN, limit

    async def ask(
        self, client: Client, journal: CallJournal, num_workers: int
    ) -> dict[str, Answer]:
        """Send all requests, ``num_workers`` concurrently; return answers by request hash.

        Requests that are too long for the model have no answer. All requests are sent even if one
        fails; then the first failure is raised, and the journal contains the answers.
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
                _LOGGER.warning("message skipped: %s", answer)
                continue
            if isinstance(answer, BaseException):
                raise answer
            answered[digest] = answer
        return answered


async def _judge(
    analyser: Analyser, request: ChatRequest, digest: str, client: Client, journal: CallJournal
) -> Answer:
    """Request a verdict; retry with a reminder if the answer cannot be parsed."""
    completions: list[Completion] = []
    verdict = Verdict(None, "")
    for attempt in range(2):
        try:
            completion = await journal.call(
                f"{digest}/a{attempt}", request, partial(client.complete, request)
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
        reply = ChatMessage("assistant", completion.text)
        request = replace(request, messages=(*request.messages, reply, analyser.reminder()))
    return Answer(verdict, tuple(completions))
