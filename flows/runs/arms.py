"""The life of an arm: build scenario → initial state → iterations → tests.

The keys of its family (:mod:`tasks.tensordict.keys`, :mod:`tasks.text.keys`,
:mod:`tasks.language.keys`) define the stages of each step. The store decides which are done, so
that a retried, resumed or restarted run continues where the last one stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.stages.driver import Execute, StageDriver, in_thread
from tasks.stages.sequence import StoredStageLayout
from trainers.progress import show

if TYPE_CHECKING:
    from flows.runs.setup import ExperimentRun
    from tasks.stages.families import AnySession


async def run_arm(
    run: ExperimentRun,
    session: AnySession,
    execute: Execute,
    recomputed: set[str] | None = None,
) -> None:
    """Run the stages of an arm, in the order of :meth:`tasks.stages.keys.BaseKeys.stages`.

    ``execute`` executes a stage, such as :func:`tasks.stages.driver.execute_stage`. ``recomputed``,
    if given, are the keys of the stages that the run has recomputed so far; all others are
    recomputed and added.
    """
    keys = session.keys
    layout = StoredStageLayout(session.store, session.settings, recomputed)
    stages = StageDriver(session, execute, run.recorder.stage_finished, recomputed)

    await stages.run([keys.build_scenario()])
    await stages.run(keys.initial_stages())  # initial_state, pretrain, imitate
    async for iteration in in_thread(keys.iterations(layout)):
        await stages.run(iteration)  # train; of chat models sample_rollouts, log_stats, …
    if keys.final_state_key is not None:
        run.recorder.final_state(keys.arm, keys.final_state_key, keys.model_kind)
    await stages.run(keys.tests(layout))
    show({})  # clear the arm's metrics
