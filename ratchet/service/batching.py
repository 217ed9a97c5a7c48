"""Batching of requests, in one thread that owns the engine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ratchet.errors import RatchetError
from ratchet.language_models.engines.interface import (
    EmbeddingRequest,
    EmbeddingResult,
    Engine,
    EngineError,
    EngineStoppedError,
    GenerationChunk,
    GenerationRequest,
    GenerationResult,
    ModelUnavailableError,
    QueueFullError,
    RequestRefusedError,
    SleepingEngine,
)

if TYPE_CHECKING:
    from ratchet.service.models import StoredModel

logger = logging.getLogger(__name__)

_QUIET_SECONDS = 0.001  # without an arrival, a burst of requests is complete
_NAP_SECONDS = 1.0
_GATHER_SECONDS = 0.05  # longest wait while requests keep arriving


Result = GenerationResult | EmbeddingResult


@dataclass(slots=True)
class _Waiting:
    model: StoredModel
    request: GenerationRequest | EmbeddingRequest
    number: int = 0
    result: Future[Result] = field(default_factory=Future)

    def goes_with(self, first: _Waiting, *, shares_base: bool) -> bool:
        """Whether one call of the engine can process both requests."""
        if type(self.request) is not type(first.request):
            return False
        if shares_base:
            return self.model.complete_folder == first.model.complete_folder
        return self.model.id == first.model.id


@dataclass(slots=True)
class _Nap:
    """A period of sleep for the engine, after all requests up to a number."""

    after: int
    has_begun: bool = False
    is_over: bool = False


class Batcher:
    """Group requests into batches and run one batch at a time.

    A batch is for one model, or for several with one base if the engine supports it. The engine is
    created in the batcher's own thread, since its imports take seconds.
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
        self._running: list[_Waiting] = []
        self._stopped = False
        self._ended: str | None = None
        self._arrived = 0
        self._nap: _Nap | None = None
        self._is_made = False
        self._sleeper: SleepingEngine | None = None
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
            _fail(item, EngineStoppedError("The service is stopping."))
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

    @contextlib.contextmanager
    def asleep(self) -> Iterator[None]:
        """Let the engine release its memory until the end of the block, if it supports that.

        Requests that wait at the start are processed first; later ones wait for the end.
        """
        with self._changed:
            nap = self._nap = _Nap(self._arrived)
            self._changed.notify_all()
            while self._thread.is_alive() and not (nap.has_begun or self._stopped):
                if self._is_made and self._sleeper is None:
                    break
                self._changed.wait(_NAP_SECONDS)  # the thread may have ended without notifying
        try:
            yield
        finally:
            with self._changed:
                nap.is_over = True
                self._changed.notify_all()

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
            for item in items:
                self._arrived += 1
                item.number = self._arrived
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
            if isinstance(engine, SleepingEngine) and engine.sleeps:
                self._sleeper = engine
            with self._changed:
                self._is_made = True
                self._changed.notify_all()
            self._load(engine, self._first)
            self.ready.set_result(None)
            self._serve(engine)
        except BaseException as error:  # noqa: BLE001 -- requests must not wait for a thread that ended
            self._end(error)

    def _serve(self, engine: Engine) -> None:
        shares_base = getattr(engine, "shares_base", False)
        while True:
            self._sleep_if_due()
            self._running, unload = self._next(engine.max_batch_size, shares_base=shares_base)
            for model_id in unload:
                try:
                    self._unload(engine, model_id)
                except Exception as error:  # the thread must live: other requests don't need it
                    logger.error("%s was not unloaded", model_id, exc_info=error)
            if self._running:
                self._answer(engine, self._running)
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
            _fail(item, EngineError(message))
        if not self.ready.done():
            self.ready.set_exception(error)

    def _sleep_is_due(self) -> bool:
        nap = self._nap
        if self._sleeper is None or nap is None or nap.has_begun or nap.is_over:
            return False
        return all(item.number > nap.after for item in self._waiting)

    def _sleep_if_due(self) -> None:
        """Let the engine sleep for the requested period; if that fails it stays awake."""
        with self._changed:
            nap, sleeper = self._nap, self._sleeper
            if sleeper is None or nap is None or not self._sleep_is_due():
                return
        sleeps = True
        try:
            sleeper.sleep()
        except Exception as error:  # the thread must live, and the job may have enough memory
            logger.error("The engine did not give its memory away", exc_info=error)
            sleeps = False
        with self._changed:
            nap.has_begun = True
            self._changed.notify_all()
            while sleeps and not (nap.is_over or self._stopped):
                self._changed.wait()
        try:
            if sleeps:
                sleeper.wake_up()
        except Exception as error:  # later requests fail with the reason
            logger.error("The engine did not take its memory back", exc_info=error)

    def _next(self, size: int, *, shares_base: bool) -> tuple[list[_Waiting], list[str]]:
        """Wait for work: the oldest request and compatible ones, up to a full batch."""
        with self._changed:
            while not (self._waiting or self._to_unload or self._stopped or self._sleep_is_due()):
                self._changed.wait()
            deadline = time.monotonic() + _GATHER_SECONDS
            while 0 < len(self._waiting) < size and time.monotonic() < deadline:
                if not self._changed.wait(_QUIET_SECONDS):
                    break
            unload, self._to_unload = self._to_unload, []
            batch: list[_Waiting] = []
            models: set[str] = set()
            others: deque[_Waiting] = deque()
            for item in self._waiting:
                if item.result.cancelled():
                    continue
                same = not batch or item.goes_with(batch[0], shares_base=shares_base)
                fits = item.model.id in models or len(models) < self._loaded_max
                if same and fits and len(batch) < size:
                    batch.append(item)
                    models.add(item.model.id)
                else:
                    others.append(item)
            self._waiting = others
            return batch, unload

    def _answer(self, engine: Engine, batch: list[_Waiting]) -> None:
        batch = self._with_models(engine, batch)
        if not batch:
            return
        try:
            results = _ask(engine, [item.request for item in batch])
            if len(results) != len(batch):
                message = f"the engine gave {len(results)} results for {len(batch)} requests"
                raise RuntimeError(message)
        except Exception as error:  # noqa: BLE001 -- the thread must live; clients get the error
            failure = _failure(batch[0].model, error)
            for item in batch:
                _fail(item, failure)
            return
        for item, result in zip(batch, results, strict=True):
            if isinstance(result, RequestRefusedError):
                _fail(item, result)
            elif item.result.set_running_or_notify_cancel():
                item.result.set_result(result)

    def _with_models(self, engine: Engine, batch: list[_Waiting]) -> list[_Waiting]:
        """Load the models of a batch; fail and leave out requests whose model can't be loaded."""
        failures: dict[str, EngineError] = {}
        for model in {item.model.id: item.model for item in batch}.values():
            try:
                self._load(engine, model)
            except Exception as error:  # noqa: BLE001 -- as above
                failures[model.id] = _failure(model, error)
        for item in batch:
            if item.model.id in failures:
                _fail(item, failures[item.model.id])
        return [item for item in batch if item.model.id not in failures]

    def _load(self, engine: Engine, model: StoredModel) -> None:
        if model.id in self._loaded:
            self._loaded.move_to_end(model.id)
            return
        if not model.exists:  # deleted while the request waited
            raise ModelUnavailableError(f"There is no model {model.id!r} here.")
        while len(self._loaded) >= self._loaded_max:
            self._unload(engine, next(iter(self._loaded)))
        engine.load(model.id, model.complete_folder, model.adapters)
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


def _failure(model: StoredModel, error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    logger.error("A batch for %s failed", model.id, exc_info=error)
    what = str(error) if isinstance(error, RatchetError) else "the service's log says why"
    return EngineError(f"The model could not answer: {what}.")


def _fail(item: _Waiting, error: EngineError | RequestRefusedError) -> None:
    if not item.result.done() and item.result.set_running_or_notify_cancel():
        item.result.set_exception(error)
