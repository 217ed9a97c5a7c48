"""Run an experiment in this process without Prefect: the same stages, keys and run folder."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from flows.process.environment import prepare_environment
from flows.process.progress import shown_progress
from flows.runs.resolve import ArmChanges, Parameters, resolve
from flows.runs.result import ExperimentResult
from flows.runs.run import count_remaining, run_anywhere
from flows.runs.setup import ExperimentRun, open_run
from ratchet.errors import ReportError, TrackingError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.logs import kept_log
from tasks.save import SavedCopy
from tasks.stages.driver import StageDriver, execute_stage
from tasks.stages.sequence import StoredStageLayout
from trainers.progress import tee_progress

if TYPE_CHECKING:
    from ratchet.tracking.manifest import RunStatus


def run_without_prefect(
    hyper_params: Parameters,
    settings: ExperimentSettings | None = None,
    *,
    arms: ArmChanges | None = None,
    name: str | None = None,
) -> ExperimentResult:
    """Run or resume an experiment in this process without Prefect; arms run sequentially.

    Stages, keys and the run's folder are those of :func:`flows.run_experiment`, so that either
    continues what the other started. Parameters as there; raises the error of a stage that failed
    in all its attempts.
    """
    experiment = resolve(hyper_params, settings, arms, name=name)
    settings = experiment.settings
    prepare_environment(settings.home, settings.num_threads, make_folders=False)
    with shown_progress(settings.progress, partial(count_remaining, experiment)):
        experiment.check_stored_stages()
        run = open_run(experiment, None)
        try:
            _run(run)
        finally:
            run.close()
            for kind, uri in run.mirrors.items():
                with suppress(TrackingError):  # recorded as an event
                    SavedCopy(run.folder, kind, uri).update()
    return run.result()


def _run(run: ExperimentRun) -> None:
    folder = run.folder
    with kept_log(folder.path, folder.run_id), run.observer.told():
        try:
            with tee_progress(run.live):
                run_anywhere(partial(_run_arms, run))
        except BaseException as error:
            status: RunStatus = "failed" if isinstance(error, Exception) else "interrupted"
            folder.set_status(status, f"{type(error).__name__}: {error}")
            raise
        folder.set_status("completed")  # the report contains it
        with suppress(ReportError):  # recorded as an event
            SavedCopy(folder, "report").update()


async def _run_arms(run: ExperimentRun) -> None:
    for session in run.sessions:
        keys = session.keys
        driver = StageDriver(session, execute_stage, run.recorder.stage_finished)
        await driver.run(keys.stages(StoredStageLayout(session.store, session.settings)))
        run.recorder.final_state(keys)
