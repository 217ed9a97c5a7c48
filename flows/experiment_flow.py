"""The ``experiment`` flow: resolve → open the run → run its arms → save.

:func:`run_arm` runs an arm: build scenario → initial state → iterations → tests. The keys of its
family (:mod:`tasks.tensordict.keys`, :mod:`tasks.text.keys`, :mod:`tasks.language.keys`) define the
stages of each step. The store decides which are done, so that a retried, resumed or restarted flow
run continues where the last one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from prefect import flow
from prefect.runtime import flow_run

from flows.runs.pause_and_cancel import classify_outcome, handle_pause_and_cancel
from flows.runs.prefect_artifacts import observed
from flows.runs.resolve import RESOLVED_EXPERIMENT, ResolvedExperiment, resolve_parameters
from flows.runs.result import ExperimentResult
from flows.runs.setup import AnySession, ExperimentRun, open_run
from ratchet.errors import RunPrunedError
from ratchet.tracking.logs import log_context
from tasks.save import save_mirror, save_report
from tasks.stages.calls import StageCall
from tasks.stages.sequence import ParallelChains, Step, StoredStageLayout
from trainers.progress import show, tee_progress

_Item = TypeVar("_Item")


def _flow_run_name() -> str:
    """Name a flow run after its run, if the settings contain its id."""
    settings = flow_run.get_parameters().get("settings") or {}
    return str(settings.get("run_id") or flow_run.get_name())


@flow(
    name="experiment",
    flow_run_name=_flow_run_name,
    persist_result=False,
    validate_parameters=False,
)
async def experiment(
    hyper_params: dict[str, Any],
    settings: dict[str, Any] | None = None,
    arms: dict[str, dict[str, Any]] | None = None,
    name: str = "experiment",
    keep: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Run an experiment, starting with the first stage that is not stored.

    Parameters
    ----------
    hyper_params
        Parameters that affect the result.
    settings
        Settings that do not, such as locations.
    arms
        Further experiments of the same run for comparison, as changes to ``hyper_params``.
    name
        The experiment's name, the prefix of the run's id.
    keep
        Reuse the run's finished stages even if their code has changed.
    force
        Recompute every stage even if it is stored.
    """
    resolved = RESOLVED_EXPERIMENT.get()
    if resolved is None or resolved.run_id != (settings or {}).get("run_id"):
        resolved = await asyncio.to_thread(
            resolve_parameters, hyper_params, settings, arms, name=name, keep=keep
        )
    return await run_resolved(resolved, force=force)


async def run_resolved(experiment: ResolvedExperiment, *, force: bool = False) -> dict[str, Any]:
    """Run a resolved experiment inside the running flow; parameters as :func:`experiment`."""
    flow_run_id = flow_run.get_id()
    if not force and RESOLVED_EXPERIMENT.get() is not experiment:  # otherwise already checked
        await asyncio.to_thread(experiment.check_paid_stages)
    with log_context(run=experiment.run_id), suppress(RunPrunedError):  # no failure
        run = await asyncio.to_thread(open_run, experiment, flow_run_id)
        async with observed(run), _saved_to_mirrors(run):
            with tee_progress(run.live):
                await _run_arms(run, force=force)
            run.folder.set_status("completed")  # the report contains it
            await save_report(run.folder, experiment.settings, run.last_tasks())
    return ExperimentResult(
        run_id=run.folder.run_id,
        folder=str(run.folder.path),
        metrics=run.recorder.metrics,
        states=run.recorder.states,
        made=run.recorder.made,
        found=run.recorder.found,
        flow_run_id=flow_run_id,
    ).to_dict()


async def _run_arms(run: ExperimentRun, *, force: bool) -> None:
    """Run the arms sequentially, or concurrently if the settings select a parallel runner.

    If an arm fails, concurrent arms still run to their end. Arms share common stages, so that each
    is recomputed once per run; recomputed arms run sequentially, since stages are removed first.
    """
    settings = run.experiment.settings
    recomputed: set[str] | None = set() if force else None
    if force or settings.runner in ("inline", "work_pool") or len(run.sessions) == 1:
        for session in run.sessions:
            await run_arm(run, session, recomputed)
        return
    from flows.runners.factory import open_runner
    from flows.runners.stage_dispatch import RemoteStageExecutor

    async with open_runner(settings, run.folder.path, len(run.sessions)) as runner:
        elsewhere = RemoteStageExecutor(runner)
        for session in run.sessions:
            elsewhere.take(session)
        await _together([run_arm(run, session) for session in run.sessions])


async def run_arm(
    run: ExperimentRun, session: AnySession, recomputed: set[str] | None = None
) -> None:
    """Run the stages of an arm, in the order of :meth:`tasks.stages.keys.BaseKeys.stages`.

    ``recomputed``, if given, are the keys of the stages that the run has recomputed so far; all
    others are recomputed and added.
    """
    keys = session.keys
    layout = StoredStageLayout(session.store, session.settings, recomputed)
    session.fresh = recomputed is not None
    stages = _StageExecutor(run, session, recomputed)

    await stages.execute([keys.build_scenario()])
    await stages.execute(keys.initial_stages())  # initial_state, pretrain, imitate
    async for iteration in _in_thread(keys.iterations(layout)):
        await stages.execute(iteration)  # train; of chat models sample_rollouts, log_stats, …
    if keys.final_state_key is not None:
        run.recorder.final_state(keys.arm, keys.final_state_key, keys.model_kind)
    await stages.execute(keys.tests(layout))
    show({})  # clear the arm's metrics


@dataclass(frozen=True)
class _StageExecutor:
    """Executes the stages of an arm as Prefect tasks and records them."""

    run: ExperimentRun
    session: AnySession
    recomputed: set[str] | None

    async def execute(self, steps: Iterable[Step]) -> None:
        """Execute steps in order; their keys are computed in a thread."""
        async for step in _in_thread(iter(steps)):
            if isinstance(step, StageCall):
                await self._execute_stage(step)
            else:
                await self._execute_in_parallel(step)

    async def _execute_stage(self, call: StageCall) -> None:
        recomputed = self.recomputed
        is_due = recomputed is not None and call.key not in recomputed
        outcome = await self.session.stages[call.stage](
            call, self.session, force=is_due and call.pinned_key is None
        )
        if recomputed is not None:
            recomputed.add(call.key)
        self.run.recorder.stage_finished(outcome)
        await handle_pause_and_cancel(self.run)

    async def _execute_in_parallel(self, chains: ParallelChains) -> None:
        firsts = await asyncio.to_thread(lambda: [next(chain) for chain in chains])
        with self.session.running(firsts) as futures:
            await _together(
                [
                    self._execute_chain(first, chain, futures[first.key])
                    for first, chain in zip(firsts, chains, strict=True)
                ]
            )

    async def _execute_chain(
        self, first: StageCall, others: Iterator[StageCall], future: Future[None]
    ) -> None:
        """Execute a chain; resolve or cancel the future that concurrent stages may wait for."""
        try:
            await self._execute_stage(first)
        except BaseException:
            future.cancel()
            raise
        future.set_result(None)
        await self.execute(others)


async def _in_thread(items: Iterator[_Item]) -> AsyncIterator[_Item]:
    """Iterate in a thread, since keys take time to compute."""
    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item  # type: ignore[misc]


async def _together(work: list[Coroutine[Any, Any, object]]) -> None:
    """Wait for all even if one fails, since started work may be billed; raise the first error."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


@asynccontextmanager
async def _saved_to_mirrors(run: ExperimentRun) -> AsyncIterator[None]:
    """Record how the run ended, in all cases, and save it to its mirrors."""
    try:
        yield
    except BaseException as error:
        status, message = classify_outcome(run.folder, error)
        run.folder.set_status(status, message)
        run.folder.log_event(status, message)
        raise
    finally:
        run.close()
        for kind, uri in run.mirrors.items():
            await save_mirror(
                run.folder, run.experiment.settings, kind, uri, after=run.last_tasks()
            )
