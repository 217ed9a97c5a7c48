"""Completions that wait together are generated together, in one thread that owns the engine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from ratchet.errors import RatchetError
from ratchet.language_models.service.api.errors import ApiError, not_found
from ratchet.language_models.service.engine.interface import (
    EmbeddingRequest,
    EmbeddingResult,
    Engine,
    GenerationRequest,
    GenerationResult,
    Piece,
    RequestRefusedError,
)
from ratchet.language_models.service.models import StoredModel

logger = logging.getLogger(__name__)

_QUIET_SECONDS = 0.001  # no arrival for so long: who comes together has come
_GATHER_SECONDS = 0.01  # the longest an idle engine waits for company


Result = GenerationResult | EmbeddingResult


@dataclass(slots=True)
class _Waiting:
    model: StoredModel
    request: GenerationRequest | EmbeddingRequest
    result: Future[Result] = field(default_factory=Future)

    def goes_with(self, first: _Waiting) -> bool:
        """Whether one call of the engine can answer both."""
        same_kind = type(self.request) is type(first.request)
        return same_kind and self.model.id == first.model.id


class Batcher:
    """Gathers requests into batches of one model and runs them one batch at a time.

    The engine is made in the batcher's own thread, since its imports take seconds.
    """

    def __init__(
        self, make_engine: Callable[[], Engine], *, waiting_max: int, loaded_max: int
    ) -> None:
        self._make_engine = make_engine
        self._waiting_max = waiting_max
        self._loaded_max = loaded_max
        self._waiting: deque[_Waiting] = deque()
        self._to_unload: list[str] = []
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self.ready: Future[None] = Future()

    def start(self, first: StoredModel) -> None:
        """Make the engine and load a first model, in the background; see ``ready``."""
        self._first = first
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the batch it is at; who still waits gets a 503."""
        with self._changed:
            self._stopped = True
            left, self._waiting = list(self._waiting), deque()
            self._changed.notify()
        for item in left:
            _fail(item, ApiError(503, "The service is stopping.", code="stopping"))
        if self._thread.ident is not None:
            self._thread.join()

    async def generate(
        self, model: StoredModel, requests: list[GenerationRequest]
    ) -> list[GenerationResult]:
        """Answer requests to one model together with whatever else waits for it.

        Raises
        ------
        ApiError
            429 if too many wait; 400 if a request does not fit the model; 5xx if the engine fails.
        """
        items = self._enqueue(model, requests)
        results = await asyncio.gather(*(asyncio.wrap_future(item.result) for item in items))
        return [result for result in results if isinstance(result, GenerationResult)]

    async def embed(
        self, model: StoredModel, requests: list[EmbeddingRequest]
    ) -> list[EmbeddingResult]:
        """Turn texts into vectors; raises as :meth:`generate` does."""
        items = self._enqueue(model, requests)
        results = await asyncio.gather(*(asyncio.wrap_future(item.result) for item in items))
        return [result for result in results if isinstance(result, EmbeddingResult)]

    async def stream(
        self, model: StoredModel, requests: list[GenerationRequest]
    ) -> AsyncIterator[tuple[int, Piece | GenerationResult]]:
        """Give out each answer's pieces as they are made, and at its end the whole of it.

        Raises as :meth:`generate` does.

        Yields
        ------
        tuple
            Which of the requests, and a piece of its answer or its result.
        """
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[tuple[int, Piece | None]] = asyncio.Queue()

        def tell(place: int, piece: Piece | None) -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
                loop.call_soon_threadsafe(news.put_nowait, (place, piece))

        def tell_end(place: int, _: Future[Result]) -> None:
            tell(place, None)

        listening = [
            replace(request, on_piece=functools.partial(tell, place))
            for place, request in enumerate(requests)
        ]
        items = self._enqueue(model, listening)
        for place, item in enumerate(items):
            item.result.add_done_callback(functools.partial(tell_end, place))
        told = [(0, 0)] * len(items)
        left = len(items)
        try:
            while left:
                place, piece = await news.get()
                characters, tokens = told[place]
                if piece is not None:
                    told[place] = characters + len(piece.text), tokens + len(piece.tokens)
                    yield place, piece
                    continue
                left -= 1
                result = items[place].result.result()
                assert isinstance(result, GenerationResult)
                rest = Piece(result.text[characters:], result.tokens[tokens:])
                if rest.text or rest.tokens:
                    yield place, rest
                yield place, result
        finally:
            for item in items:
                item.result.cancel()

    def _enqueue(
        self, model: StoredModel, requests: Sequence[GenerationRequest | EmbeddingRequest]
    ) -> list[_Waiting]:
        items = [_Waiting(model, request) for request in requests]
        with self._changed:
            if self._stopped:
                raise ApiError(503, "The service is stopping.", code="stopping")
            if len(self._waiting) + len(items) > self._waiting_max:
                raise ApiError(
                    429,
                    f"{len(self._waiting)} completions wait already. Try again later.",
                    code="queue_full",
                    headers={"Retry-After": "1"},
                )
            self._waiting.extend(items)
            self._changed.notify()
        return items

    def forget(self, model_id: str) -> None:
        """Unload a model that has been deleted."""
        with self._changed:
            self._to_unload.append(model_id)
            self._changed.notify()

    def _work(self) -> None:
        try:
            engine = self._make_engine()
            self._load(engine, self._first)
        except Exception as error:  # noqa: BLE001 -- told to whoever waits for the start
            self.ready.set_exception(error)
            return
        self.ready.set_result(None)
        while True:
            batch, unload = self._next(engine.max_batch_size)
            for model_id in unload:
                self._unload(engine, model_id)
            if batch:
                self._answer(engine, batch)
            elif self._stopped:
                return

    def _next(self, size: int) -> tuple[list[_Waiting], list[str]]:
        """Wait for work: the oldest request and all others to its model, up to a full batch."""
        with self._changed:
            while not (self._waiting or self._to_unload or self._stopped):
                self._changed.wait()
            deadline = time.monotonic() + _GATHER_SECONDS
            while 0 < len(self._waiting) < size and time.monotonic() < deadline:
                if not self._changed.wait(_QUIET_SECONDS):
                    break
            unload, self._to_unload = self._to_unload, []
            batch: list[_Waiting] = []
            others: deque[_Waiting] = deque()
            for item in self._waiting:
                if item.result.cancelled():
                    continue
                same = not batch or item.goes_with(batch[0])
                (batch if same and len(batch) < size else others).append(item)
            self._waiting = others
            return batch, unload

    def _answer(self, engine: Engine, batch: list[_Waiting]) -> None:
        try:
            self._load(engine, batch[0].model)
            results = _ask(engine, [item.request for item in batch])
            if len(results) != len(batch):
                message = f"the engine gave {len(results)} results for {len(batch)} requests"
                raise RuntimeError(message)
        except ApiError as error:
            for item in batch:
                _fail(item, error)
            return
        except Exception as error:  # the thread must live; the clients are told
            logger.error("A batch for %s failed", batch[0].model.id, exc_info=error)
            what = str(error) if isinstance(error, RatchetError) else "the service's log says why"
            failure = ApiError(500, f"The model could not answer: {what}.", code="engine_failed")
            for item in batch:
                _fail(item, failure)
            return
        for item, result in zip(batch, results, strict=True):
            if isinstance(result, RequestRefusedError):
                _fail(item, ApiError(400, str(result), code=result.code, param=result.param))
            elif item.result.set_running_or_notify_cancel():
                item.result.set_result(result)

    def _load(self, engine: Engine, model: StoredModel) -> None:
        if model.id in self._loaded:
            self._loaded.move_to_end(model.id)
            return
        if not model.is_there:  # deleted while the request waited
            raise not_found("model", model.id, param="model")
        while len(self._loaded) >= self._loaded_max:
            self._unload(engine, next(iter(self._loaded)))
        engine.load(model.id, model.whole_folder, model.adapters)
        self._loaded[model.id] = None

    def _unload(self, engine: Engine, model_id: str) -> None:
        if model_id in self._loaded:
            del self._loaded[model_id]
            engine.unload(model_id)


def _ask(
    engine: Engine, requests: list[GenerationRequest | EmbeddingRequest]
) -> Sequence[Result | RequestRefusedError]:
    to_generate = [request for request in requests if isinstance(request, GenerationRequest)]
    if to_generate:
        return engine.generate(to_generate)
    return engine.embed([request for request in requests if isinstance(request, EmbeddingRequest)])


def _fail(item: _Waiting, error: ApiError) -> None:
    if item.result.set_running_or_notify_cancel():
        item.result.set_exception(error)
