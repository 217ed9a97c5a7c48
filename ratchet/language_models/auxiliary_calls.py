"""Cached chat-model calls outside the game; a completed call is never billed twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from ratchet.errors import ContentFilterError, PromptTooLongError, RatchetError
from ratchet.language_models.concurrency import run_bounded
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.journal import CallJournal
from ratchet.language_models.pricing import FREE, ModelPrice, PriceTable
from ratchet.language_models.types import ChatRequest, Completion
from ratchet.language_models.usage import UsageMeter

if TYPE_CHECKING:
    from ratchet.language_models.chat import ChatClient
    from ratchet.parameters.service_fields import ServedModel
    from ratchet.parameters.settings import ExperimentSettings

REFUSED = "refused"
"""``finish_reason`` of a completion that the service refused: filtered, or prompt too long."""


@dataclass(frozen=True, slots=True)
class AuxiliaryModel:
    """Expected calls of a model that plays no agent: typically ``calls``, at most ``most_calls``.

    Both are None if they depend on the data. ``max_tokens`` limits each completion.
    """

    model: ServedModel
    calls: int | None
    most_calls: int | None
    max_tokens: int


class ModelCalls:
    """The auxiliary calls of one stage. Use it as a context manager.

    Parameters
    ----------
    settings
        Used here: workers, limits per minute, the request timeout, and prices.
    usage
        Counts the use of completed calls, and has attempts billed.
    journal
        The file of completed calls; without it they are cached only while this is open.
    before_first
        Called before the first call, to start services.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        usage: UsageMeter,
        journal: Path | None = None,
        before_first: Callable[[], None] = lambda: None,
    ) -> None:
        self.usage = usage
        self._settings = settings
        self._path = journal
        self._before_first = before_first
        self._journal: CallJournal | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def ask(
        self,
        who: str,
        model: ServedModel,
        requests: Mapping[str, ChatRequest],
        dummy: Callable[[ChatRequest], Completion],
    ) -> dict[str, Completion]:
        """Request a completion for each named request, concurrently; return them by name.

        ``who`` is the caller in the usage table. ``dummy`` generates completions for a model
        without a service. Refused requests have ``finish_reason`` :data:`REFUSED`.

        Raises LanguageModelError if some failed, after all others have ended.
        """
        journal, price = self._opened(), self._price(model)
        client = None if model.use_dummy_api else self._client(model)

        async def answer(name: str) -> Completion:
            request = requests[name]

            async def make() -> Completion:
                return await self._make(client, request, name, price, dummy)

            completion = await journal.call(name, request, make)
            self.usage.record_call(who, model.model_name, completion, price)
            return completion

        outcomes = asyncio.run(
            run_bounded(list(requests), answer, workers=self._settings.num_rollout_workers)
        )
        failed = [(o.item, o.error) for o in outcomes if o.error is not None]
        if failed:
            name, error = failed[0]
            if not isinstance(error, RatchetError):
                raise error
            raise type(error)(
                f"{who}: {len(failed)} of {len(outcomes)} calls failed. The first, {name}:"
                f" {error} Completed calls are cached: run the same command again."
            ) from error
        return {outcome.item: outcome.result for outcome in outcomes if outcome.result is not None}

    async def _make(
        self,
        client: ChatClient | None,
        request: ChatRequest,
        name: str,
        price: ModelPrice | None,
        dummy: Callable[[ChatRequest], Completion],
    ) -> Completion:
        if client is None:
            return dummy(request)
        try:
            return await client.complete(request, self.usage.bill(price, request, name))
        except (ContentFilterError, PromptTooLongError):
            return Completion("", REFUSED, 0, 0, request.model)

    def _opened(self) -> CallJournal:
        if self._journal is None:
            self._before_first()
            path = self._path
            if path is None:
                path = Path(self._open.enter_context(TemporaryDirectory())) / "calls.jsonl"
            self._journal = self._open.enter_context(CallJournal(path))
        return self._journal

    def _client(self, model: ServedModel) -> ChatClient:
        from ratchet.language_models.chat import shared_chat_client  # imports openai

        settings = self._settings
        endpoint = Endpoint.of(model, settings.request_seconds)
        return shared_chat_client(
            endpoint, settings.requests_per_minute, settings.tokens_per_minute
        )

    def _price(self, model: ServedModel) -> ModelPrice | None:
        if model.use_dummy_api or Endpoint.of(model).is_embedded:
            return FREE
        return PriceTable.load(self._settings.prices).find(model.model_name)
