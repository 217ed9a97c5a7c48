"""An arm of chat models: sample → (statistics, tests, fine-tuning side by side) → … → test.

Reads from top to bottom. Which stages are done is the store's to say, as in
:mod:`flows.experiment_flow`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tasks.build_scenario import build_scenario
from tasks.stages.calls import StageCall
from tasks.stages.datasets import tested_datasets
from tasks.stages.decorator import Stage, StageOutcome
from tasks.text.fine_tuning import await_fine_tune_jobs, create_fine_tune_jobs
from tasks.text.initial_state import initial_state
from tasks.text.playing import sample_rollouts, test, test_during_training
from tasks.text.statistics import log_stats

if TYPE_CHECKING:
    from flows.runs.setup import ExperimentRun
    from tasks.text.session import TextArmSession


async def play_text_arm(run: ExperimentRun, session: TextArmSession, *, force: bool) -> None:
    """Do all stages of one arm of chat models.

    Parameters
    ----------
    run
        The run.
    session
        The arm's.
    force
        Make every stage anew even if it is stored.

    Raises
    ------
    RatchetError
        Whatever a stage failed with, once those beside it have ended.
    """

    async def do(stage: Stage[Any], call: StageCall) -> StageOutcome:
        outcome = await stage(call, session, force=force and call.pinned_key is None)
        run.recorder.stage_finished(outcome)
        return outcome

    async def fine_tune(iteration: int) -> None:
        await do(create_fine_tune_jobs, keys.create_fine_tune_jobs(iteration))
        await do(await_fine_tune_jobs, keys.await_fine_tune_jobs(iteration))

    keys = session.keys
    data = await do(build_scenario, keys.build_scenario())
    run.recorder.dataset_hashes(data.manifest.key)
    if not keys.only_tests:
        await do(initial_state, keys.initial_state())

    for iteration in range(keys.num_iterations):
        beside: list[Coroutine[Any, Any, object]] = []
        if not keys.only_tests:
            await do(sample_rollouts, keys.sample_rollouts(iteration))
            beside.append(do(log_stats, keys.log_stats(iteration)))
            if keys.is_steered:  # what comes next depends on it
                await beside.pop()
        if keys.tests_during_training(iteration):
            beside.append(do(test_during_training, keys.test_during_training(iteration)))
        if keys.makes_jobs(iteration) and not keys.only_tests:
            beside.append(fine_tune(iteration))
        await _together(beside)

    run.recorder.final_state(keys.arm, keys.final_state_key)
    for dataset in tested_datasets(data.manifest):
        await do(test, keys.test(dataset))


async def _together(work: list[Coroutine[Any, Any, object]]) -> None:
    """Wait for all, also where one fails: what the others have begun is paid for."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
