"""Stages: functions that compute stored results, and :func:`make_stage`, which executes one.

The store decides which stages are done. Prefect is not required; :mod:`tasks.stages.prefect_tasks`
shows each stage as a task.
"""

from __future__ import annotations

import cProfile
import functools
import io
import pstats
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeAlias, TypeVar

from ratchet.store.claim import Claim
from ratchet.store.manifest import IterationMetrics, Manifest
from ratchet.tracking.environment import library_versions
from ratchet.tracking.files import write_atomically
from ratchet.tracking.logs import log_context
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.stage_kinds import StageKind, kind_of
from tasks.stages import faults
from tasks.stages.background import wait_for_background
from tasks.stages.calls import StageCall, StageOutcome
from tasks.stages.failures import explained, full_disk_explained
from tasks.stages.session import BaseSession
from tasks.stages.undeclared_files import noted_files
from trainers.progress import describe, progress_path, progress_stage

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

Metrics = Sequence[IterationMetrics]
_Session = TypeVar("_Session", bound=BaseSession)
Work: TypeAlias = Callable[[StageCall, Path, _Session], Metrics]

_ONE_AT_A_TIME = threading.Lock()
"""Owned by the stage that computes, since it seeds the libraries' global generators."""
_PROFILED_FUNCTIONS = 60


class Stage(Generic[_Session]):
    """A kind of stage; :func:`make_stage` executes it with a call and a session.

    Parameters
    ----------
    work
        Computes the stage: writes its files into a folder and returns its metrics.
    alone
        Whether no other such stage may compute in this process at the same time. Not necessary
        for stages that mostly wait for a service and use no global generator.
    name
        The name of Prefect's tasks, by default that of ``work``.
    kind
        What runs and reports know of it, by default Ratchet's kind with the name of ``work``.
    """

    __test__: ClassVar[bool] = False
    """Not a test case for pytest, even if its name is ``test``."""

    def __init__(
        self,
        work: Work[_Session],
        *,
        alone: bool = True,
        name: str | None = None,
        kind: StageKind | None = None,
    ) -> None:
        self.work = work
        self.alone = alone
        self.name = name or work.__name__
        self.kind = kind or kind_of(work.__name__)
        self.__doc__ = work.__doc__


def stage(work: Work[_Session]) -> Stage[_Session]:
    """Create a stage from a function that writes files into a folder and returns metrics."""
    return Stage(work)


def stage_of(kind: StageKind) -> Callable[[Work[_Session]], Stage[_Session]]:
    """Return the decorator of the function that computes a plug-in's kind of stage."""
    return functools.partial(Stage, kind=kind)


def waiting_stage(work: Work[_Session]) -> Stage[_Session]:
    """Create a stage, as :func:`stage`, that may run concurrently with others."""
    return Stage(work, alone=False)


def stage_log_context(call: StageCall, session: BaseSession) -> AbstractContextManager[None]:
    """Add the stage to log records."""
    run = session.settings.run_id
    return log_context(run=run, arm=call.arm, stage=call.name, iteration=call.iteration)


def make_stage(
    stage: Stage[_Session], call: StageCall, session: _Session, *, force: bool = False
) -> StageOutcome:
    """Return the stored stage or compute it.

    A second process waits for the first and reuses its result. Raises StoreError if the store
    cannot be written; writes are atomic.
    """
    with stage_log_context(call, session):
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
    return manifest.start_iteration <= call.start_iteration or call.kind.span != "iterations"


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
    is_profiled = stage.alone and session.settings.profiler
    with (
        explained(call),
        faults.armed(call.stage, call.iteration, call.detail),
        session.observer.under_way(call),
    ):
        describe(call.title)
        with (
            _alone() if stage.alone else nullcontext(),
            progress_stage(call.kind),
            _profiled(call, session.settings) if is_profiled else nullcontext(),
            noted_files(call, session, claim.workdir),
            full_disk_explained(call, claim.workdir),
        ):
            session.seconds_ahead = 0.0
            start = time.monotonic()
            metrics = stage.work(call, claim.workdir, session)
            seconds = time.monotonic() - start + session.seconds_ahead
        manifest = claim.commit(
            stage=call.stage,
            iteration=call.iteration,
            start_iteration=call.start_iteration,
            inputs=call.inputs,
            parameters=call.parameters,
            fingerprint=call.fingerprint,
            metrics=metrics,
            seconds=seconds,
            run_id=session.settings.run_id,
            versions=library_versions(),
        )
    return StageOutcome(call, manifest, False, "computed")


@contextmanager
def _alone() -> Iterator[None]:
    """Execute the block while no other stage computes in this process, nor its background work."""
    with _ONE_AT_A_TIME:
        wait_for_background()
        yield


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
        span = f"{call.start_iteration}-" if call.kind.span == "iterations" else ""
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
