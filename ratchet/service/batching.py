"""Batching of requests, in one thread that owns the engine."""

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
from typing import TYPE_CHECKING, cast

from ratchet.errors import RatchetError
from ratchet.language_models.engines.interface import (
    ContinuousEngine,
    EmbeddingRequest,
    EmbeddingResult,
    Engine,
    EngineError,
    EngineStoppedError,
    GenerationChunk,
    GenerationRequest,
    GenerationResult,
    ModelUnavailableError,
    QueuedRequest,
    QueueFullError,
    RequestRefusedError,
)
from ratchet.service.memory import has_room

if TYPE_CHECKING:
    from ratchet.service.models import StoredModel

logger = logging.getLogger(__name__)

_QUIET_SECONDS = 0.001  # without an arrival, a burst of requests is complete
_GATHER_SECONDS = 0.05  # longest wait while requests keep arriving


Result = GenerationResult | EmbeddingResult


@dataclass(slots=True)
class _Waiting:
    model: StoredModel
    request: GenerationRequest | EmbeddingRequest
    result: Future[Result] = field(default_factory=Future)

    @property
    def is_cancelled(self) -> bool:
        """Whether its client has gone."""
        return self.result.cancelled()

    def goes_with(self, first: _Waiting) -> bool:
        """Whether one call of the engine can process both requests."""
        return type(self.request) is type(first.request) and self.model.id == first.model.id

    def deliver(self, result: Result | EngineError | RequestRefusedError) -> None:
        """Return its result to the client, unless it has one already."""
        if self.result.done() or not self.result.set_running_or_notify_cancel():
            return
        if isinstance(result, Exception):
            self.result.set_exception(result)
        else:
            self.result.set_result(result)


class Batcher:
    """Group requests to a model into batches and run one batch at a time.

    If the engine can add requests to a running batch, those that arrive join it, until one to
    another model or for an embedding waits. The engine is created in the batcher's own thread,
    since its imports take seconds.
    """

    def __init__(
        self, make_engine: Callable[[], Engine], *, waiting_max: int, loaded_max: int
    ) -> None:
        self._make_engine = make_engine
        self._waiting_max = waiting_max
        self._loaded_max = loaded_max
        self._waiting: deque[_Waiting] = deque()
        self._to_unload: list[str] = []
        self._loaded: OrderedDict[str, StoredModel] = OrderedDict()
        self._changed = threading.Condition()
        self._running: list[_Waiting] = []
        self._stopped = False
        self._ended: str | None = None
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self.ready: Future[None] = Future()

    def start(self, first: StoredModel) -> None:
        """Create the engine and load a first model, in the background; see ``ready``."""
        self._first = first
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the running batch; waiting requests fail."""
        with self._changed:
            self._stopped = True
            left, self._waiting = list(self._waiting), deque()
            self._changed.notify()
        for item in left:
            item.deliver(EngineStoppedError("The service is stopping."))
        if self._thread.ident is not None:
            self._thread.join()

    async def generate(
        self, model: StoredModel, requests: list[GenerationRequest]
    ) -> list[GenerationResult]:
        """Process requests to one model, in batches with other waiting ones."""
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
    ) -> AsyncIterator[tuple[int, GenerationChunk | GenerationResult]]:
        """Yield each completion's chunks during generation, then the complete result.

        Raises as :meth:`generate` does.

        Yields
        ------
        tuple
            The index of the request, and a chunk of its completion or its result.
        """
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[tuple[int, GenerationChunk | None]] = asyncio.Queue()

        def tell(index: int, piece: GenerationChunk | None) -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(news.put_nowait, (index, piece))

        def tell_end(index: int, _: Future[Result]) -> None:
            tell(index, None)

        listening = [
            replace(request, on_piece=functools.partial(tell, index))
            for index, request in enumerate(requests)
        ]
        items = self._enqueue(model, listening)
        for index, item in enumerate(items):
            item.result.add_done_callback(functools.partial(tell_end, index))
        sent_counts = [(0, 0)] * len(items)
        left = len(items)
        try:
            while left:
                index, piece = await news.get()
                characters, tokens = sent_counts[index]
                if piece is not None:
                    sent_counts[index] = characters + len(piece.text), tokens + len(piece.tokens)
                    yield index, piece
                    continue
                left -= 1
                result = items[index].result.result()
                assert isinstance(result, GenerationResult)
                rest = GenerationChunk(result.text[characters:], result.tokens[tokens:])
                if rest.text or rest.tokens:
                    yield index, rest
                yield index, result
        finally:
            for item in items:
                item.result.cancel()

    def _enqueue(
        self, model: StoredModel, requests: Sequence[GenerationRequest | EmbeddingRequest]
    ) -> list[_Waiting]:
        items = [_Waiting(model, request) for request in requests]
        with self._changed:
            if self._stopped:
                raise EngineStoppedError("The service is stopping.")
            if self._ended is not None:
                raise EngineError(self._ended)
            if len(self._waiting) + len(items) > self._waiting_max:
                raise QueueFullError(
                    f"{len(self._waiting)} completions wait already. Try again later."
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
        """Run the engine until the service stops; if its thread ends early, fail all requests."""
        try:
            engine = self._make_engine()
            self._load(engine, self._first)
            self.ready.set_result(None)
            self._serve(engine)
        except BaseException as error:  # noqa: BLE001 -- requests must not wait for a thread that ended
            self._end(error)

    def _serve(self, engine: Engine) -> None:
        while True:
            self._running, unload = self._next(engine.max_batch_size)
            for model_id in unload:
                try:
                    self._unload(engine, model_id)
                except Exception as error:  # the thread must live: other requests don't need it
                    logger.error("%s was not unloaded", model_id, exc_info=error)
            if self._running:
                self._answer(engine)
            elif self._stopped:
                return

    def _end(self, error: BaseException) -> None:
        """Fail all requests, running, waiting and future, since the engine's thread ends."""
        if self.ready.done():
            logger.error("The engine ended", exc_info=error)
        message = f"The engine has ended ({type(error).__name__}); restart the service."
        with self._changed:
            self._ended = message
            left = [*self._running, *self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
        for item in left:
            item.deliver(EngineError(message))
        if not self.ready.done():
            self.ready.set_exception(error)

    def _next(self, size: int) -> tuple[list[_Waiting], list[str]]:
        """Wait for work: the oldest request and compatible ones, up to a full batch."""
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
                if item.is_cancelled:
                    continue
                if len(batch) < size and (not batch or item.goes_with(batch[0])):
                    batch.append(item)
                else:
                    others.append(item)
            self._waiting = others
            return batch, unload

    def _answer(self, engine: Engine) -> None:
        """Process the running batch, and fail its requests that get no result."""
        model = self._running[0].model
        try:
            self._load(engine, model)
            is_chat = isinstance(self._running[0].request, GenerationRequest)
            if is_chat and isinstance(engine, ContinuousEngine):
                take = cast("Callable[[int], list[QueuedRequest]]", self._taking())
                engine.generate_continuously(model.id, take)
            else:
                _process(engine, self._running)
            left = sum(not item.result.done() for item in self._running)
            if left:
                raise RuntimeError(f"the engine gave no results for {left} requests")
        except Exception as error:  # noqa: BLE001 -- the thread must live; clients get the error
            failure = _failure(model, error)
            for item in self._running:
                item.deliver(failure)

    def _taking(self) -> Callable[[int], list[_Waiting]]:
        """Return the function that takes the running batch's requests, then those that join it."""
        first, batch = self._running[0], deque(self._running)

        def take(count: int) -> list[_Waiting]:
            if batch:
                return [batch.popleft() for _ in range(min(count, len(batch)))]
            return self._join(first, count)

        return take

    def _join(self, first: _Waiting, count: int) -> list[_Waiting]:
        """Take requests that arrived before the first one that must wait for the batch's end."""
        joining: list[_Waiting] = []
        with self._changed:
            while self._waiting and len(joining) < count and not self._to_unload:
                item = self._waiting[0]
                if not item.is_cancelled:
                    if not item.goes_with(first):
                        break
                    joining.append(item)
                self._waiting.popleft()
        if joining:  # done requests are forgotten, since a batch may never end
            running = [item for item in self._running if not item.result.done()]
            self._running = [*running, *joining]
        return joining

    def _load(self, engine: Engine, model: StoredModel) -> None:
        if model.id in self._loaded:
            self._loaded.move_to_end(model.id)
            return
        if not model.exists:  # deleted while the request waited
            raise ModelUnavailableError(f"There is no model {model.id!r} here.")
        while self._loaded and (
            len(self._loaded) >= self._loaded_max
            or not has_room(model.bytes_to_load(self._loaded.values()))
        ):
            self._unload(engine, next(iter(self._loaded)))
        engine.load(model.id, model.complete_folder, model.adapters)
        self._loaded[model.id] = model

    def _unload(self, engine: Engine, model_id: str) -> None:
        if model_id in self._loaded:
            del self._loaded[model_id]
            engine.unload(model_id)


def _process(engine: Engine, batch: Sequence[_Waiting]) -> None:
    """Process requests of one kind, and deliver their results together."""
    chats = [item.request for item in batch if isinstance(item.request, GenerationRequest)]
    texts = [item.request for item in batch if isinstance(item.request, EmbeddingRequest)]
    results = engine.generate(chats) if chats else engine.embed(texts)
    if len(results) != len(batch):
        raise RuntimeError(f"the engine gave {len(results)} results for {len(batch)} requests")
    for item, result in zip(batch, results, strict=True):
        item.deliver(result)


def _failure(model: StoredModel, error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    logger.error("A batch for %s failed", model.id, exc_info=error)
    what = str(error) if isinstance(error, RatchetError) else "the service's log says why"
    return EngineError(f"The model could not answer: {what}.")
