"""The stage decorator: a function that does one stage's work becomes a stored, retried task.

The store decides what is done; Prefect is told about it. A finished stage is shown as "Cached".
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed

from ratchet.errors import (
    BudgetExceededError,
    CustomCodeError,
    DataError,
    FineTuneError,
    MissingKeyError,
    MissingPackageError,
    OutOfMemoryError,
    ParameterError,
    PromptTooLongError,
    RatchetError,
    RolloutError,
    StageKeyError,
    StalledJobError,
    TaskCodeError,
    UnknownNameError,
)
from ratchet.lazy import explain_missing
from ratchet.plugins import causes, custom_code_location
from ratchet.store.claim import Claim
from ratchet.store.manifest import IterationMetrics, Manifest
from ratchet.tracking.logs import log_place
from tasks.stages import faults
from tasks.stages.calls import StageCall
from tasks.stages.interrupting import interrupt_thread
from tasks.stages.profiling import profiled
from tasks.stages.session import AheadFailedError, BaseSession, FinishedTask, TaskGraph
from trainers.progress import describe, progress_place

logger = logging.getLogger(__name__)

Metrics = Sequence[IterationMetrics]
_Session = TypeVar("_Session", bound=BaseSession)
Work: TypeAlias = Callable[[StageCall, Path, _Session], Metrics]

_ONE_AT_A_TIME = threading.Lock()
"""Held while a stage computes: libraries' global generators are seeded meanwhile."""


@dataclass(frozen=True)
class StageOutcome:
    """A finished stage, found or made."""

    call: StageCall
    manifest: Manifest
    hit: bool
    reason: str

    def __str__(self) -> str:
        if not self.hit:
            return f"made in {self.manifest.seconds:.1f} s"
        return "found in the store" if self.reason == "stored" else self.reason


class Stage(Generic[_Session]):
    """A kind of stage: call it with a call and a session to have the stage done.

    Parameters
    ----------
    work
        Does the stage: writes its files into a folder and returns its metrics.
    alone
        Whether no other such stage may work in this process meanwhile. Stages that mostly wait
        for a service, and draw from no global generator, need not be alone.
    """

    def __init__(self, work: Work[_Session], *, alone: bool = True) -> None:
        self.work = work
        self.alone = alone
        self.name = work.__name__
        functools.update_wrapper(self, work)

    async def __call__(
        self, call: StageCall, session: _Session, *, force: bool = False
    ) -> StageOutcome:
        """Find the stage in the store or make it, as a task of the running flow.

        With ``force`` it is made anew even if it is stored. Raises RatchetError, whatever the work
        raised, after ``settings.retries`` further attempts.
        """
        place, key, settings = _place(call, session), call.key, session.settings
        request = _Request(self, call, call.label, session, force)
        before = _tasks_before(call, session.tasks)
        one = _prefect_task(self.name, settings.retries, settings.retry_delay_seconds)
        with place:
            state: State[Any] = await one(request, wait_for=before, return_state=True)
        session.tasks.done[key] = await state.aresult(raise_on_failure=True)
        if call.stage == "train":
            session.tasks.trained[call.iteration] = key
        return request.result()


def _tasks_before(call: StageCall, tasks: TaskGraph) -> list[FinishedTask]:
    """Return what stands for the tasks that a call follows: the edges of Prefect's graph.

    Those are the tasks whose stages it takes in, but for what one of these takes in too.
    """
    tasks.inputs[call.key] = inputs = set(call.inputs.values())
    if call.stage == "train" and call.start_iteration in tasks.trained:
        inputs.add(tasks.trained[call.start_iteration])  # its key knows the first state alone
    further = {key for near in inputs for key in tasks.inputs.get(str(near), ())}
    return [tasks.done[key] for key in sorted(tasks.done.keys() & inputs - further)]


def stage(work: Work[_Session]) -> Stage[_Session]:
    """Make a stage of a function that writes files into a folder and returns metrics."""
    return Stage(work)


def waiting_stage(work: Work[_Session]) -> Stage[_Session]:
    """Make a stage, as :func:`stage`, that may work beside others."""
    return Stage(work, alone=False)


def _place(call: StageCall, session: BaseSession) -> AbstractContextManager[None]:
    """Have what is logged say which stage it is about."""
    run = session.settings.run_id
    return log_place(run=run, arm=call.arm, stage=call.name, iteration=call.iteration)


def make_stage(
    stage: Stage[_Session], call: StageCall, session: _Session, *, force: bool = False
) -> StageOutcome:
    """Find a stage in the store or make it; knows nothing of Prefect.

    Whoever comes second waits for the first and takes its result. Raises StoreError if the store
    cannot be written; nothing half-written is left behind.
    """
    with _place(call, session):
        stored = session.store.find(call.key)
        if stored is not None and not force and _fits(stored, call):
            session.stage_finished(call)
            return StageOutcome(call, stored, True, "stored")
        if stored is not None:
            session.store.remove(call.key)
        with progress_place(call.arm), _claimed(call, session) as claim:
            if claim.existing is not None:
                return StageOutcome(call, claim.existing, True, "made by another run meanwhile")
            outcome = _work(stage, call, session, claim)
            session.stage_finished(call)
        return outcome


@contextmanager
def _claimed(call: StageCall, session: BaseSession) -> Iterator[Claim]:
    """Claim a stage that is not stored; say for whom one waits, and then for how long one has."""
    begin, observer = time.monotonic(), session.observer
    holders = []

    def wait(holder: str) -> None:
        holders.append(holder)
        describe(f"{call.title}: {holder} makes it, waiting for that")
        observer.waiting(call, holder)

    with session.store.claim(call.key, missed=True, on_wait=wait) as claim:
        if holders:
            observer.waited(call, time.monotonic() - begin)
        yield claim


def _work(stage: Stage[_Session], call: StageCall, session: _Session, claim: Claim) -> StageOutcome:
    begin = time.monotonic()
    lock: AbstractContextManager[object] = _ONE_AT_A_TIME if stage.alone else nullcontext()
    is_profiled = stage.alone and session.settings.profiler
    with (
        _explained(call),
        faults.armed(call.stage, call.iteration, call.detail),
        session.observer.under_way(call),
    ):
        describe(call.title)
        with lock, profiled(call, session.settings) if is_profiled else nullcontext():
            metrics = stage.work(call, claim.workdir, session)
        manifest = claim.commit(
            stage=call.stage,
            iteration=call.iteration,
            start_iteration=call.start_iteration,
            inputs=call.inputs,
            parameters=call.parameters,
            fingerprint=call.fingerprint,
            metrics=metrics,
            seconds=time.monotonic() - begin,
            run_id=session.settings.run_id,
        )
    return StageOutcome(call, manifest, False, "made")


@contextmanager
def _explained(call: StageCall) -> Iterator[None]:
    """Raise again, as what says so, what would fail the same way another time."""
    try:
        yield
    except ImportError as error:
        known = explain_missing(error)
        if known is None:
            raise
        raise known from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RatchetError) or not _is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"{call.label}: more memory was asked for than there is ({_first_line(error)})."
            f" {_WHAT_TO_LOWER}"
        ) from error
    except (*_DETERMINISTIC, RolloutError, TaskCodeError) as error:
        location = custom_code_location(error)
        if location is None or _could_succeed(error):
            raise
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        raise CustomCodeError(
            f"{call.label}: {type(error).__name__}: {error}{notes}\nCorrect the code and run the"
            f" same command again; finished stages are kept. Raised at\n{location}"
        ) from error


_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
_WHAT_TO_LOWER = (
    "Lower what decides how large tensors are: rl.frames_per_batch and rl.minibatch_size, the"
    " agents' widths (agents.NAME.d_…), the number of datapoints, for images"
    " settings.pretrained_embeddings_batch_size; or take a machine with more memory."
)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether it says that memory did not suffice: torch has a RuntimeError for each device."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class _Request(Generic[_Session]):
    """Carries a stage into its task and the outcome out; no data that Prefect would look into."""

    def __init__(
        self, stage: Stage[_Session], call: StageCall, label: str, session: _Session, force: bool
    ) -> None:
        self.stage, self.call, self.label = stage, call, label
        self.session, self.force = session, force
        self._outcome: StageOutcome | None = None
        self._attempts = 0
        self._thread: int | None = None
        self._thread_changes = threading.Lock()

    async def fulfil(self) -> StageOutcome:
        """Make the stage in a thread, which ends with this where it only computes; or elsewhere."""
        self._attempts += 1
        try:
            self._outcome = await self._make_somewhere()
        except Exception as error:
            self._tell_of_failure(error)
            raise
        return self._outcome

    async def _make_somewhere(self) -> StageOutcome:
        session = self.session
        elsewhere = session.make_elsewhere
        if elsewhere is not None and (self.force or not await asyncio.to_thread(self._is_stored)):
            return await elsewhere(self.call, self.force)
        job = functools.partial(contextvars.copy_context().run, self._make)
        loop = asyncio.get_running_loop()
        executor = session.executor if self.stage.alone else session.executor_beside
        try:
            return await loop.run_in_executor(executor, job)
        except asyncio.CancelledError:
            if self.stage.alone:  # the others wait for answers that are paid for
                self.interrupt()
            raise

    def _tell_of_failure(self, error: Exception) -> None:
        """Log an attempt that failed, and whether there is another, as Prefect will have it."""
        label, why = self.label, f"{type(error).__name__}: {error}"
        left = self.session.settings.retries - self._attempts + 1
        if not _could_succeed(error):
            left = 0
            logger.info("%s failed, and would again: %s", label, why)
        else:
            end = "tried again" if left > 0 else "that was the last attempt"
            logger.warning("%s failed at attempt %d, %s: %s", label, self._attempts, end, why)
        self.session.observer.failed(self.call, error, again=left > 0)

    def _is_stored(self) -> bool:
        return self.session.store.find(self.call.key) is not None

    def _make(self) -> StageOutcome:
        with self._thread_changes:
            self._thread = threading.get_ident()
        try:
            return make_stage(self.stage, self.call, self.session, force=self.force)
        finally:
            with self._thread_changes:  # the thread goes on to other work
                self._thread = None

    def interrupt(self) -> None:
        """End the work where it is, if it has begun and not ended."""
        with self._thread_changes:
            if self._thread is not None:
                interrupt_thread(self._thread)

    def result(self) -> StageOutcome:
        assert self._outcome is not None  # the task has completed
        return self._outcome


def _task_run_name(parameters: dict[str, Any]) -> str:
    return str(parameters["request"].label)


@task(
    task_run_name=_task_run_name,  # type: ignore[arg-type] # its type asks for a method of its own
    cache_policy=NO_CACHE,
    persist_result=False,
    log_prints=False,
)
async def _run_stage(request: _Request[Any]) -> State[Any]:
    outcome = await request.fulfil()
    logger.info("%s: %s", request.label, outcome)
    words = str(outcome)
    return Completed(
        name="Cached" if outcome.hit else "Completed",
        message=f"{words[:1].upper()}{words[1:]} ({outcome.manifest.key[:12]}).",
        data=FinishedTask(),
    )


@functools.cache  # making one reads and parses the function's source
def _prefect_task(name: str, retries: int, delay: float) -> Task[..., Any]:
    """Return the task of a kind of stage.

    It has no tags: Prefect asks for a concurrency slot of each, and that can wait for seconds.
    """
    return _run_stage.with_options(
        name=name,
        retries=retries,
        retry_delay_seconds=delay,
        retry_condition_fn=_is_worth_a_retry,
    )


def _fits(manifest: Manifest, call: StageCall) -> bool:
    """Refuse a stored stage that begins later than this run's training has come.

    Its state is right, but the metrics between would be missing.
    """
    return manifest.start_iteration <= call.start_iteration or call.stage != "train"


_DETERMINISTIC = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(NameError, NotImplementedError, SyntaxError, TypeError),
)
"""Mistakes in code, by which the same work would fail again."""
_NOT_WORTH_A_RETRY = (
    AheadFailedError,
    BudgetExceededError,
    CustomCodeError,
    DataError,
    FineTuneError,
    MissingKeyError,
    MissingPackageError,
    OutOfMemoryError,
    ParameterError,
    PromptTooLongError,
    StageKeyError,
    StalledJobError,
    UnknownNameError,
)


async def _is_worth_a_retry(task: Any, task_run: TaskRun, state: State[Any]) -> bool:  # noqa: ANN401
    """Return whether another attempt could end otherwise."""
    try:
        await state.aresult(raise_on_failure=True)
    except Exception as error:  # noqa: BLE001 -- whatever a stage failed with
        return _could_succeed(error)
    return True


def _could_succeed(error: Exception) -> bool:
    """Return whether the same again could end otherwise."""
    return not any(
        isinstance(each, _NOT_WORTH_A_RETRY)
        or (isinstance(each, _DETERMINISTIC) and not isinstance(each, RatchetError))
        for each in causes(error)
    )
