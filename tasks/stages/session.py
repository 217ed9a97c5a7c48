"""``BaseSession``: process-local context shared by the stages of an arm; and the run's billing."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ratchet.errors import BudgetExceededError
from ratchet.file_reads import Stamp, noted_reads
from ratchet.tracking.observers import StageObserver
from tasks.stages.background import BackgroundWork
from tasks.stages.failures import PrefetchFailedError

if TYPE_CHECKING:
    from ratchet.language_models.auxiliary_calls import ModelCalls
    from ratchet.language_models.ledger import Ledger
    from ratchet.language_models.usage import UsageMeter
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from tasks.stages.calls import StageCall, StageOutcome
    from tasks.stages.keys import BaseKeys

    MakeElsewhere: TypeAlias = Callable[[StageCall, bool], Awaitable[StageOutcome]]

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


class FinishedTask:
    """Result of a finished task of the flow run: Prefect links it to the tasks that wait for it.

    The task's state would also do, but Prefect requests its result from another thread each time.
    """


@dataclass
class TaskGraph:
    """Tasks of the flow run by their stages' keys.

    ``inputs`` maps each stage to the keys that it follows, ``trained`` iterations to the keys of
    the training stages that end there.
    """

    done: dict[str, FinishedTask] = field(default_factory=dict)
    inputs: dict[str, set[str | int]] = field(default_factory=dict)
    trained: dict[int, str] = field(default_factory=dict)

    def last(self) -> list[FinishedTask]:
        """Return the tasks that no finished task follows."""
        followed = set().union(*(self.inputs[key] for key in self.done))
        return [each for key, each in self.done.items() if key not in followed]


class BaseSession:
    """Process-local context of an arm's stages.

    Attributes
    ----------
    parallel_executor
        Executes stages that may run concurrently with others.
    make_elsewhere
        Executes stages in another process, if set: takes the call and whether to recompute it.
    fresh
        Whether all stages are recomputed, so that stored ones don't count.
    is_driven
        Whether the stages are executed in sequence, so that the next one usually follows.
    noting, noted
        The context that notes the files that a stage's custom code reads, and these files.
    seconds_ahead
        How long results of the current stage were computed before it started.
    """

    def __init__(
        self,
        keys: BaseKeys,
        settings: ExperimentSettings,
        store: StageStore,
        executor: Executor,
    ) -> None:
        self.keys = keys
        self.settings = settings
        self.store = store
        self.executor = executor
        self.parallel_executor = executor
        self.before_calls: Callable[[], None] | None = None
        self.observer = StageObserver()
        self.make_elsewhere: MakeElsewhere | None = None
        self.fresh = self.is_driven = False
        self.tasks = TaskGraph()
        self._running: dict[str, Future[None]] = {}
        self._ahead: tuple[str, BackgroundWork[Any]] | None = None
        self._failed_ahead = False
        self.noting = ExitStack()
        self.noted: dict[str, Stamp] = {}
        self.seconds_ahead = 0.0

    def make_services_ready(self) -> None:
        """Start the services of agents; called by each stage that may call a language model."""
        if self.before_calls is not None:
            self.before_calls()

    def model_calls(self, call: StageCall) -> AbstractContextManager[ModelCalls | None]:
        """Return the chat model calls of a stage that builds data; None if the arm has none."""
        return nullcontext()

    def stage_finished(self, call: StageCall) -> None:
        """Delete temporary files of a stage, which is stored now."""

    @contextmanager
    def running(self, calls: Iterable[StageCall]) -> Iterator[Mapping[str, Future[None]]]:
        """Let stages that run concurrently wait for each other.

        Yields futures by key, to be resolved when each stage is stored, or cancelled if it fails.
        """
        self._running = {call.key: Future() for call in calls}
        try:
            yield self._running
        finally:
            for future in self._running.values():
                future.cancel()
            self._running = {}

    def is_running(self, call: StageCall) -> bool:
        """Return whether a stage runs concurrently with another."""
        return call.key in self._running

    def find_result(self, call: StageCall) -> Callable[[], Path] | None:
        """Return a function that waits for a stage and returns its folder.

        None if the stage is neither stored nor running.
        """
        future = self._running.get(call.key)
        if future is None and self.store.find(call.key) is None:
            return None

        def wait() -> Path:
            if future is not None:
                _wait_for(future, call)
            return self.store.open(call.key)

        return wait

    def compute_ahead(self, key: str, call: StageCall | None, work: Callable[[], Any]) -> None:
        """Start to compute a stage's result in a thread, if a run will need it.

        ``key``: that of the stage from whose state it starts, which is being written: without
        custom code, so that files that are read from now on are noted for the other stage. A
        profile needs each stage in its thread.
        """
        if call is None or not self.is_driven or self.settings.profiler or self._failed_ahead:
            return
        if self.fresh or self.store.find(call.key) is None:
            self.noting.close()
            self._ahead = key, BackgroundWork(partial(_observed, work, self.keys.folder))

    def take_ahead(self, key: str) -> Any:  # noqa: ANN401 -- of the function that computes it
        """Return the result computed ahead from a stage's state, or None; discard any other.

        None also if it failed: custom code may use objects of the stages' thread. Then nothing is
        computed ahead any more.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != key:
            return None
        try:
            result, reads, seconds = ahead[1].result()
        except Exception as error:  # noqa: BLE001 -- any error of custom code
            self._failed_ahead = True
            logger.warning(
                "A thread that computed while the state was written failed. The stage computes the"
                " result again, and from now on none ahead. %s: %s",
                type(error).__name__,
                error,
            )
            return None
        self.noted.update(reads)
        self.seconds_ahead = seconds
        return result

    def close(self) -> None:
        """Release all components."""
        if self._ahead is not None:
            self._ahead[1].end()
        self.executor.shutdown()


def _observed(work: Callable[[], Any], folder: Path) -> tuple[Any, dict[str, Stamp], float]:
    """Return a function's result, the files of a folder that are read meanwhile, and its time."""
    start = time.monotonic()
    with noted_reads(str(folder.resolve())) as reads:
        result = work()
    return result, reads, time.monotonic() - start


def _wait_for(future: Future[None], call: StageCall) -> None:
    """Wait for a concurrent stage with timeouts, between which the thread can be interrupted."""
    while True:
        try:
            return future.result(_POLL_SECONDS)
        except FutureTimeoutError:
            pass
        except CancelledError as error:
            raise PrefetchFailedError(f"{call.label}, which ran concurrently, failed.") from error


@dataclass(frozen=True)
class RunBilling:
    """The ledger of a run, shared by all stages of all arms; thread-safe.

    Its budget is ``settings.budget``, in the currency of the price table.
    """

    ledger: Ledger

    @property
    def left(self) -> float | None:
        """Remaining budget of a trainer with its own account; None if it is unlimited."""
        limit = self.ledger.budget.limit
        return None if limit is None else max(limit - self.ledger.billed.at_most, 0.0)

    def add(self, call: StageCall, usage: UsageMeter) -> None:
        """Enter the cost of a stage that its trainer did not enter in the ledger."""
        if usage.ledger is not self.ledger and usage.cost > 0:
            from ratchet.language_models.ledger import Charge

            self.ledger.settle(f"stage {call.key}", Charge(usage.cost, usage.cost))

    @contextmanager
    def watched(self, call: StageCall, run_id: str | None) -> Iterator[None]:
        """Add the stage and the command that continues to a BudgetExceededError."""
        try:
            yield
        except BudgetExceededError as error:
            raise BudgetExceededError(
                f"settings.budget: {call.label!r} would exceed it. {error} To continue:"
                f" `ratchet resume {run_id} --budget MORE`."
            ) from error
