"""The ``experiment`` flow: resolve → open the run → for each arm its stages → save.

Which stages an arm has, in which order, is said by ``stages`` of the keys of its family
(:mod:`tasks.tensordict.keys`, :mod:`tasks.text.keys`). Which of them are done is the store's to
say; a flow run that is retried, resumed or started again goes on where the last one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from flows.runs.ending import how_it_ended
from flows.runs.pausing import heed
from flows.runs.prefect_page import observed
from flows.runs.resolving import HANDED_OVER, ResolvedExperiment, resolve_parameters
from flows.runs.result import ExperimentResult
from flows.runs.setup import AnySession, ExperimentRun, open_run
from ratchet.errors import RunPrunedError
from ratchet.tracking.logs import log_place
from tasks.save import save_mirror, save_report
from tasks.stages.calls import StageCall
from tasks.stages.sequence import Beside, Step, StoredCourse
from trainers.progress import also_told, show


def _flow_run_name() -> str:
    """Name a flow run after its run, where the settings say which that is."""
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
    """Run an experiment from wherever it stands.

    Parameters
    ----------
    hyper_params
        All that decides the result.
    settings
        Where and how it runs.
    arms
        Further experiments of the same run, to compare with: changes to ``hyper_params``.
    name
        The experiment's name, from which the run's id is made.
    keep
        Keep the run's finished stages even if their code has changed.
    force
        Make every stage anew even if it is stored.
    """
    resolved = HANDED_OVER.get()
    if resolved is None or resolved.run_id != (settings or {}).get("run_id"):
        resolved = await asyncio.to_thread(
            resolve_parameters, hyper_params, settings, arms, name=name, keep=keep
        )
    return await play_experiment(resolved, force=force)


async def play_experiment(experiment: ResolvedExperiment, *, force: bool = False) -> dict[str, Any]:
    """Run a resolved experiment inside the flow that is running; as :func:`experiment`."""
    flow_run_id = flow_run.get_id()
    with log_place(run=experiment.run_id), suppress(RunPrunedError):  # no failure: it keeps all
        run = await asyncio.to_thread(open_run, experiment, flow_run_id)
        async with observed(run), _recorded(run):
            with also_told(run.live):
                await _play_arms(run, force=force)
            run.folder.set_status("completed")  # the report says so too
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


async def _play_arms(run: ExperimentRun, *, force: bool) -> None:
    """Play the arms one after the other, or at once where the settings say so.

    An arm that fails then does not keep the others from coming to their ends. What is made anew is
    removed first, so that nobody else may need it meanwhile. Arms share what they have in common
    even then: a stage is recomputed once per run.
    """
    settings = run.experiment.settings
    recomputed: set[str] | None = set() if force else None
    if force or settings.runner in ("inline", "work_pool") or len(run.sessions) == 1:
        for session in run.sessions:
            await _play_arm(run, session, recomputed)
        return
    from flows.runners.choosing import open_runner
    from flows.runners.stages import StagesElsewhere

    async with open_runner(settings, run.folder.path, len(run.sessions)) as runner:
        elsewhere = StagesElsewhere(runner)
        for session in run.sessions:
            elsewhere.take(session)
        await _together([_play_arm(run, session) for session in run.sessions])


async def _play_arm(
    run: ExperimentRun, session: AnySession, recomputed: set[str] | None = None
) -> None:
    """Work the stages of an arm: train, note the final state, test.

    ``recomputed``, unless None, are the keys of the stages that the run has recomputed so far;
    every other stage is recomputed and added.
    """
    keys = session.keys
    course = StoredCourse(session.store, session.settings, recomputed)
    session.fresh = recomputed is not None

    async def make(call: StageCall) -> None:
        is_due = recomputed is not None and call.key not in recomputed
        outcome = await session.stages[call.stage](
            call, session, force=is_due and call.pinned_key is None
        )
        if recomputed is not None:
            recomputed.add(call.key)
        run.recorder.stage_finished(outcome)
        await heed(run)

    async def make_ahead(call: StageCall, made: Future[None]) -> None:
        try:
            await make(call)
        except BaseException:
            made.cancel()  # whoever waits for it would wait for ever
            raise
        made.set_result(None)

    async def play(steps: Iterator[Step]) -> None:
        while (step := await asyncio.to_thread(next, steps, None)) is not None:
            if isinstance(step, StageCall):
                await make(step)
            elif isinstance(step, Beside):
                with session.making_ahead(step.ahead) as made:
                    await _together([make_ahead(step.ahead, made), make(step.call)])
            else:
                await _together([play(chain) for chain in step])

    await play(keys.training(course))
    if keys.final_state_key is not None:
        run.recorder.final_state(keys.arm, keys.final_state_key, keys.model_kind)
    await play(keys.tests(course))
    show({})  # they are not the next arm's


async def _together(work: list[Coroutine[Any, Any, object]]) -> None:
    """Wait for all, also where one fails: what the others have begun is paid for."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


@asynccontextmanager
async def _recorded(run: ExperimentRun) -> AsyncIterator[None]:
    """Keep the run's status, and tell its mirrors how it ended, however it ends."""
    try:
        yield
    except BaseException as error:
        status, message = how_it_ended(run.folder, error)
        run.folder.set_status(status, message)
        run.folder.log_event(status, message)
        raise
    finally:
        run.close()
        for kind, place in run.mirrors.items():
            await save_mirror(
                run.folder, run.experiment.settings, kind, place, after=run.last_tasks()
            )
