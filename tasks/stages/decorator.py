"""The stage decorator: turns a function that computes a stage into a stored, retried task.

The store decides which stages are done. Prefect shows cached ones as "Cached".
"""

from __future__ import annotations

import asyncio
import contextvars
import cProfile
import functools
import io
import logging
import pstats
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed

from ratchet.store.claim import Claim
from ratchet.store.manifest import IterationMetrics, Manifest
from ratchet.syntax import PARSER_LOCK
from ratchet.tracking.environment import library_versions
from ratchet.tracking.files import write_atomically
from ratchet.tracking.logs import log_context
from ratchet.tracking.run_folder import RunFolder
from tasks.stages import faults
from tasks.stages.calls import StageCall
from tasks.stages.failures import could_succeed, explained, interrupt_thread
from tasks.stages.session import BaseSession, FinishedTask, TaskGraph
from trainers.progress import describe, progress_path

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

logger = logging.getLogger(__name__)

Metrics = Sequence[IterationMetrics]
_Session = TypeVar("_Session", bound=BaseSession)
Work: TypeAlias = Callable[[StageCall, Path, _Session], Metrics]

_ONE_AT_A_TIME = threading.Lock()
"""Held while a stage computes, since it seeds the libraries' global generators."""
_PROFILED_FUNCTIONS = 60


@dataclass(frozen=True)
class StageOutcome:
    """A finished stage, cached or computed."""

    call: StageCall
    manifest: Manifest
    hit: bool
    reason: str

    def __str__(self) -> str:
        if not self.hit:
            return f"computed in {self.manifest.seconds:.1f} s"
        return "found in the store" if self.reason == "stored" else self.reason


class Stage(Generic[_Session]):
    """A kind of stage: await it with a call and a session to execute the stage.

    Parameters
    ----------
    work
        Computes the stage: writes its files into a folder and returns its metrics.
    alone
        Whether no other such stage may compute in this process at the same time. Not necessary
        for stages that mostly wait for a service and use no global generator.
    name
        The name of Prefect's tasks, by default that of ``work``.
    """

    __test__: ClassVar[bool] = False
    """Not a test case for pytest, even if its name is ``test``."""

    def __init__(
        self, work: Work[_Session], *, alone: bool = True, name: str | None = None
    ) -> None:
        self.work = work
        self.alone = alone
        self.name = name or work.__name__
        functools.update_wrapper(self, work)

    async def __call__(
        self, call: StageCall, session: _Session, *, force: bool = False
    ) -> StageOutcome:
        """Return the stored stage or compute it, as a task of the running flow.

        With ``force``, recompute it even if it is stored. After ``settings.retries`` retries,
        raises the error of the last attempt.
        """
        settings = session.settings
        one = _prefect_task(self.name, settings.retries, settings.retry_delay_seconds)
        with _log_context(call, session):
            request = _Request(self, call, call.label, session, force)
            state: State[Any] = await one(
                request, wait_for=_tasks_before(call, session.tasks), return_state=True
            )
        session.tasks.done[call.key] = await state.aresult(raise_on_failure=True)
        if call.stage == "train":
            session.tasks.trained[call.iteration] = call.key
        return request.result()


def stage(work: Work[_Session]) -> Stage[_Session]:
    """Create a stage from a function that writes files into a folder and returns metrics."""
    return Stage(work)


def waiting_stage(work: Work[_Session]) -> Stage[_Session]:
    """Create a stage, as :func:`stage`, that may run concurrently with others."""
    return Stage(work, alone=False)


def _tasks_before(call: StageCall, tasks: TaskGraph) -> list[FinishedTask]:
    """Return the tasks that a call follows directly: the edges of Prefect's graph."""
    tasks.inputs[call.key] = inputs = set(call.inputs.values())
    if call.stage == "train" and call.start_iteration in tasks.trained:
        inputs.add(tasks.trained[call.start_iteration])  # its key only contains the first state
    further = {key for near in inputs for key in tasks.inputs.get(str(near), ())}
    return [tasks.done[key] for key in sorted(tasks.done.keys() & inputs - further)]


def _log_context(call: StageCall, session: BaseSession) -> AbstractContextManager[None]:
    """Add the stage to log records."""
    run = session.settings.run_id
    return log_context(run=run, arm=call.arm, stage=call.name, iteration=call.iteration)


def make_stage(
    stage: Stage[_Session], call: StageCall, session: _Session, *, force: bool = False
) -> StageOutcome:
    """Return the stored stage or compute it, without Prefect.

    A second process waits for the first and reuses its result. Raises StoreError if the store
    cannot be written; writes are atomic.
    """
    with _log_context(call, session):
        stored = session.store.find(call.key)
        if stored is not None and not force and _fits(stored, call):
            session.stage_finished(call)
            return StageOutcome(call, stored, True, "stored")
        if stored is not None:
            session.store.remove(call.key)
        with progress_path(call.arm), _claimed(call, session) as claim:
            if claim.existing is not None:
                return StageOutcome(call, claim.existing, True, "computed by another run")
            outcome = _compute(stage, call, session, claim)
            session.stage_finished(call)
        return outcome


def _fits(manifest: Manifest, call: StageCall) -> bool:
    """Return whether a stored stage starts no later than this run's training has come.

    Otherwise its state is correct, but the metrics between would be missing.
    """
    return manifest.start_iteration <= call.start_iteration or call.stage != "train"


@contextmanager
def _claimed(call: StageCall, session: BaseSession) -> Iterator[Claim]:
    """Claim a stage that is not stored; report which process it waits for, and how long."""
    start, observer = time.monotonic(), session.observer
    holders = []

    def wait(holder: str) -> None:
        holders.append(holder)
        describe(f"{call.title}: waiting for {holder}, which computes it")
        observer.waiting(call, holder)

    with session.store.claim(call.key, missed=True, on_wait=wait) as claim:
        if holders:
            observer.waited(call, time.monotonic() - start)
        yield claim


def _compute(
    stage: Stage[_Session], call: StageCall, session: _Session, claim: Claim
) -> StageOutcome:
    start = time.monotonic()
    lock: AbstractContextManager[object] = _ONE_AT_A_TIME if stage.alone else nullcontext()
    is_profiled = stage.alone and session.settings.profiler
    with (
        explained(call),
        faults.armed(call.stage, call.iteration, call.detail),
        session.observer.under_way(call),
    ):
        describe(call.title)
        with lock, _profiled(call, session.settings) if is_profiled else nullcontext():
            metrics = stage.work(call, claim.workdir, session)
        manifest = claim.commit(
            stage=call.stage,
            iteration=call.iteration,
            start_iteration=call.start_iteration,
            inputs=call.inputs,
            parameters=call.parameters,
            fingerprint=call.fingerprint,
            metrics=metrics,
            seconds=time.monotonic() - start,
            run_id=session.settings.run_id,
            versions=library_versions(),
        )
    return StageOutcome(call, manifest, False, "made")


@contextmanager
def _profiled(call: StageCall, settings: ExperimentSettings) -> Iterator[None]:
    """Write a profile of the block to ``profiles/ARM/STAGE.txt`` of the run folder, if it exists.

    Never into the stage's folder, since profiles are not reproducible. One stage at a time.
    """
    path = Path(settings.runs) / str(settings.run_id)
    if not (path / "manifest.json").exists():
        yield
        return
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        span = f"{call.start_iteration}-" if call.stage == "train" else ""
        name = f"{call.name}-{span}{call.iteration}.txt"
        output = RunFolder(path).profiles_path / call.arm / name
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, _profile_text(profile, call))


def _profile_text(profile: cProfile.Profile, call: StageCall) -> str:
    """List the functions with the most own time, then those with the most cumulative time."""
    text = io.StringIO()
    text.write(f"Profile of {call.label} (seconds, including the profiler's overhead)\n")
    stats = pstats.Stats(profile, stream=text).strip_dirs()
    for order in ("tottime", "cumulative"):
        stats.sort_stats(order).print_stats(_PROFILED_FUNCTIONS)
    return text.getvalue()


class _Request(Generic[_Session]):
    """Carries a stage into its task and the outcome out; opaque to Prefect."""

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
        """Execute the stage in a thread or elsewhere; cancellation ends threads that compute."""
        self._attempts += 1
        try:
            self._outcome = await self._execute()
        except Exception as error:
            self._report_failure(error)
            raise
        return self._outcome

    async def _execute(self) -> StageOutcome:
        session = self.session
        elsewhere = session.make_elsewhere
        if elsewhere is not None and (self.force or not await asyncio.to_thread(self._is_stored)):
            return await elsewhere(self.call, self.force)
        job = functools.partial(contextvars.copy_context().run, self._make)
        loop = asyncio.get_running_loop()
        executor = session.executor if self.stage.alone else session.parallel_executor
        try:
            return await loop.run_in_executor(executor, job)
        except asyncio.CancelledError:
            if self.stage.alone:  # the others wait for responses that are billed
                self.interrupt()
            raise

    def _report_failure(self, error: Exception) -> None:
        """Log a failed attempt, and whether Prefect will retry."""
        label, reason = self.label, f"{type(error).__name__}: {error}"
        left = self.session.settings.retries - self._attempts + 1
        if not could_succeed(error):
            left = 0
            logger.info("%s failed and would fail again: %s", label, reason)
        else:
            end = "retrying" if left > 0 else "no retries left"
            logger.warning("%s failed at attempt %d, %s: %s", label, self._attempts, end, reason)
        self.session.observer.failed(self.call, error, again=left > 0)

    def _is_stored(self) -> bool:
        return self.session.store.find(self.call.key) is not None

    def _make(self) -> StageOutcome:
        with self._thread_changes:
            self._thread = threading.get_ident()
        try:
            return make_stage(self.stage, self.call, self.session, force=self.force)
        finally:
            with self._thread_changes:  # the thread may be reused
                self._thread = None

    def interrupt(self) -> None:
        """Interrupt the computation if it is running."""
        with self._thread_changes:
            if self._thread is not None:
                interrupt_thread(self._thread)

    def result(self) -> StageOutcome:
        assert self._outcome is not None  # the task has completed
        return self._outcome


def _task_run_name(parameters: dict[str, Any]) -> str:
    return str(parameters["request"].label)


@task(
    task_run_name=_task_run_name,  # type: ignore[arg-type] # its type demands a bound method
    cache_policy=NO_CACHE,
    persist_result=False,
    log_prints=False,
)
async def _run_stage(request: _Request[Any]) -> State[Any]:
    outcome = await request.fulfil()
    logger.info("%s: %s", request.label, outcome)
    text = str(outcome)
    return Completed(
        name="Cached" if outcome.hit else "Completed",
        message=f"{text[:1].upper()}{text[1:]} ({outcome.manifest.key[:12]}).",
        data=FinishedTask(),
    )


@functools.cache  # creating one parses the function's source
def _prefect_task(name: str, retries: int, delay: float) -> Task[..., Any]:
    """Return the task of a kind of stage.

    Without tags: Prefect requests a concurrency slot for each tag, which can take seconds.
    """
    with PARSER_LOCK:
        return _run_stage.with_options(
            name=name,
            retries=retries,
            retry_delay_seconds=delay,
            retry_condition_fn=_is_worth_a_retry,
        )


async def _is_worth_a_retry(task: Any, task_run: TaskRun, state: State[Any]) -> bool:  # noqa: ANN401
    """Return whether another attempt could succeed."""
    try:
        await state.aresult(raise_on_failure=True)
    except Exception as error:  # noqa: BLE001 -- any error of a stage
        return could_succeed(error)
    return True
