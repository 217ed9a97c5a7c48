"""The stages that have models fine-tuned: making the jobs, and waiting for them.

Two stages, since the first acts on the world outside: it is stored as soon as the service has
taken the jobs, whatever becomes of the waiting. Each group's job is a task of its own within the
second, so that Prefect shows how long each takes, and which has failed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ratchet.errors import FineTuneError
from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, waiting_stage
from tasks.stages.session import STATE_FOLDER
from tasks.text.files import finite, read_rollouts, write_usage
from tasks.text.job_tasks import await_in_task
from tasks.text.session import TextArmSession


@waiting_stage
def create_fine_tune_jobs(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Make the jobs; write the state that knows them. The metrics say which group has none."""
    keys = session.keys
    trainer = session.trainer_at(keys.state_key(call.iteration), calls=True)
    if keys.is_steered and (after := session.state_of(keys.log_stats(call.iteration))) is not None:
        trainer.state = after
    if trainer.has_stopped:
        trainer.state.save(folder / STATE_FOLDER)
        return []
    rollouts = read_rollouts(session.store, keys.sample_rollouts(call.iteration).key)
    earlier = [read_rollouts(session.store, e.key) for e in keys.earlier_rollouts(call.iteration)]
    with session.watched(call):
        state = trainer.create_fine_tune_jobs(call.iteration, rollouts, earlier)
    state.save(folder / STATE_FOLDER)
    return [IterationMetrics(iteration=call.iteration, values=finite(trainer.job_stats()))]


@waiting_stage
def await_fine_tune_jobs(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Wait for the jobs; write the state at the beginning of the next iteration.

    A job that has failed will not succeed by waiting again: the stage that made it is forgotten,
    so that whoever resumes the run makes another.
    """
    jobs = session.keys.create_fine_tune_jobs(call.iteration)
    trainer = session.trainer_at(jobs.key, calls=True)
    trainer.around_job = partial(await_in_task, call)
    try:
        state = trainer.await_fine_tune_jobs(call.iteration)
    except FineTuneError as error:
        session.store.remove(jobs.key)
        raise FineTuneError(
            f"{error} Iteration {call.iteration} of arm {call.arm!r}: `ratchet resume"
            f" {session.settings.run_id}` makes a new job."
        ) from error
    state.save(folder / STATE_FOLDER)
    usage = trainer.training_usage
    if usage is None:
        return []
    session.spending.add(call, usage)
    write_usage(folder, usage)
    total = usage.total
    values = {
        "training_tokens": float(total.training_tokens),
        "cost": float(usage.cost),
        **finite(trainer.stage_metrics),
    }
    return [IterationMetrics(iteration=call.iteration, values=values)]
