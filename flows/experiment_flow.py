"""The ``experiment`` flow: build the scenario → initial state → training → tests → save.

Reads from top to bottom; arms of chat models are played by :mod:`flows.text_arm`. Which stages are
done is the store's to say; a flow run that is retried, resumed or started again goes on where the
last one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from prefect import flow
from prefect.runtime import flow_run

from flows.runs.result import ExperimentResult
from flows.runs.setup import ExperimentRun, open_run
from flows.text_arm import play_text_arm
from tasks.build_scenario import build_scenario
from tasks.save import save_mirror, save_report
from tasks.stages.calls import StageCall
from tasks.stages.chain import Cut, find_chain
from tasks.stages.datasets import tested_datasets
from tasks.stages.decorator import Stage, StageOutcome
from tasks.stages.session import ArmSession
from tasks.tensordict.initial_state import initial_state, pretrained_state
from tasks.tensordict.pretrain import pretrain
from tasks.tensordict.rollouts import rollouts
from tasks.tensordict.test import test
from tasks.tensordict.train import train
from tasks.tensordict.whole import whole
from tasks.text.session import TextArmSession

Do: TypeAlias = Callable[[Stage[Any], StageCall], Awaitable[StageOutcome]]


@flow(name="experiment", persist_result=False, validate_parameters=False)
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
    flow_run_id = flow_run.get_id()
    run = await asyncio.to_thread(
        open_run, name, hyper_params, settings or {}, arms, keep=keep, flow_run_id=flow_run_id
    )
    async with _recorded(run):
        for session in run.sessions:
            if isinstance(session, TextArmSession):
                await play_text_arm(run, session, force=force)
            else:
                await _play_tensor_arm(run, session, force=force)
        run.folder.set_status("completed")  # the report says so too
        await save_report(run.folder, run.settings)
    return ExperimentResult(
        run_id=run.folder.run_id,
        folder=str(run.folder.path),
        metrics=run.recorder.metrics,
        states=run.recorder.states,
        made=run.recorder.made,
        found=run.recorder.found,
        flow_run_id=flow_run_id,
    ).to_dict()


async def _play_tensor_arm(run: ExperimentRun, session: ArmSession, *, force: bool) -> None:
    """Do all stages of one arm of networks, or of one whose trainer only runs as a whole."""

    async def do(stage: Stage[Any], call: StageCall) -> StageOutcome:
        outcome = await stage(call, session, force=force)
        run.recorder.stage_finished(outcome)
        return outcome

    keys = session.keys
    data = await do(build_scenario, keys.build_scenario())
    run.recorder.dataset_hashes(data.manifest.key)
    if not keys.is_staged:
        await do(whole, keys.whole())
        return

    if not keys.only_tests:
        await _train_tensor_arm(run, session, do, force=force)
    for iteration in keys.tested_iterations:
        run.recorder.final_state(keys.arm, keys.state_key(iteration))
        for dataset in tested_datasets(data.manifest):
            await do(test, keys.test(dataset, iteration))


async def _train_tensor_arm(
    run: ExperimentRun, session: ArmSession, do: Do, *, force: bool
) -> None:
    """Do all stages of an arm of networks that lead to its final state."""
    keys = session.keys
    await do(initial_state, keys.initial_state())
    for agent in keys.pretrained_agents:
        await do(pretrain, keys.pretrain(agent))
    if keys.pretrained_agents:
        await do(pretrained_state, keys.pretrained_state())

    position, last, cut = 0, keys.num_iterations, Cut.of(run.settings)
    stored = [] if force else await asyncio.to_thread(find_chain, session.store, keys, last)
    reached = [link.iteration for link in stored]
    while True:
        if keys.samples_rollouts and cut.samples_at(position, last):
            await do(rollouts, keys.rollouts(position))
        if position >= last:
            return
        stop = reached.pop(0) if reached else cut.next_stop(position, last)
        await do(train, keys.train(position, stop))
        position = stop


@asynccontextmanager
async def _recorded(run: ExperimentRun) -> AsyncIterator[None]:
    """Keep the run's status, and tell MLflow how it ended, however it ends."""
    try:
        yield
    except BaseException as error:
        message = (
            f"{type(error).__name__}: {error} Go on with `ratchet resume {run.folder.run_id}`."
        )
        run.folder.set_status("failed", message)
        run.folder.log_event("failed", message)
        raise
    finally:
        run.close()
        if run.tracking_uri is not None:
            await save_mirror(run.folder, run.settings, run.tracking_uri)
