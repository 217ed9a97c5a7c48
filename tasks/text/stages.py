"""The stages of arms whose agents are chat models.

Each finished call is journaled until its stage is stored, so that a killed stage only pays again
for calls in flight. Fine-tuning has two stages: the jobs are stored as soon as the service has
accepted them, independently of the wait for them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import FineTuneError
from ratchet.language_models.usage import UsageMeter
from ratchet.parameters.test_groups import test_groups
from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, waiting_stage
from tasks.stages.files import STATE_FOLDER, write_table
from tasks.text.files import (
    TRANSCRIPTS_FOLDER,
    finite,
    has_rollouts,
    read_rollouts,
    result_table,
    usage_metrics,
    write_rollouts,
    write_usage,
)
from tasks.text.session import TextArmSession

if TYPE_CHECKING:
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from trainers.text.base import PureTextRlTrainer


@waiting_stage
def initial_state(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Write the state at the start of the first iteration."""
    session.new_trainer().initial_state().save(folder / STATE_FOLDER)
    return []


@waiting_stage
def sample_rollouts(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Sample the rollouts of an iteration; write them, their transcripts and their cost."""
    with session.watched(call):
        trainer = session.trainer_in(call.iteration, calls=True)
        if trainer.has_stopped:
            return []
        session.put_pool_members(trainer, call.iteration)
        rollouts, usage = trainer.sample_rollouts(call.iteration, session.journal(call))
    _save(call, folder, session, rollouts, usage)
    values = {**usage_metrics(usage), **finite(trainer.stage_metrics)}
    return [IterationMetrics(iteration=call.iteration, values=values)]


@waiting_stage
def log_stats(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Compute the statistics of an iteration's rollouts; write readable transcripts."""
    trainer = _trainer_with_callbacks(call, session)
    key = session.keys.sample_rollouts(call.iteration).key
    if not has_rollouts(session.store, key):
        trainer.state.save(folder / STATE_FOLDER)
        return []
    rollouts = read_rollouts(session.store, key)
    metrics = trainer.compute_stats(call.iteration, rollouts)
    if session.keys.has_callbacks:
        trainer.state.save(folder / STATE_FOLDER)
    trainer.save_transcripts(folder / TRANSCRIPTS_FOLDER, rollouts)
    return [IterationMetrics(iteration=call.iteration, values=finite(metrics))]


def _trainer_with_callbacks(call: StageCall, session: TextArmSession) -> PureTextRlTrainer:
    """Build the trainer; with callbacks, also load the models and the callbacks' state.

    Callbacks continue from the statistics of the previous iteration, since its fine-tuning may
    run concurrently with them.
    """
    keys = session.keys
    if not keys.has_callbacks:
        return session.new_trainer(keys.phase_from(call.iteration))
    before = session.state_of(keys.log_stats(call.iteration - 1)) if call.iteration else None
    return session.trainer_in(call.iteration, callbacks=before)


@waiting_stage
def test_during_training(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Test the models at the start of an iteration, on the same datapoints in each."""
    with session.watched(call):
        trainer = session.trainer_at(session.keys.state_key(call.iteration), calls=True)
        if trainer.has_stopped:
            return []
        rollouts, metrics, usage = trainer.test(call.iteration, session.journal(call))
    _save(call, folder, session, rollouts, usage)
    return [IterationMetrics(iteration=call.iteration, values=finite(metrics))]


@waiting_stage
def create_fine_tune_jobs(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Create the jobs; write the state that contains them. Metrics mark groups without a job."""
    keys = session.keys
    trainer = session.trainer_in(call.iteration, calls=True)
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
    """Wait for the jobs; write the state at the start of the next iteration.

    A failed job does not succeed by waiting again: the stage that created it is removed, so that
    resuming the run creates a new one.
    """
    jobs = session.keys.create_fine_tune_jobs(call.iteration)
    phase = session.keys.phase_from(call.iteration)
    trainer = session.trainer_at(jobs.key, phase, calls=True)
    if session.await_job is not None:
        trainer.around_job = partial(session.await_job, call)
    try:
        state = trainer.await_fine_tune_jobs(call.iteration)
    except FineTuneError as error:
        session.store.remove(jobs.key)
        raise FineTuneError(
            f"{error} Iteration {call.iteration} of arm {call.arm!r}: `ratchet resume"
            f" {session.settings.run_id}` repeats a failed job, and uses a finished one."
        ) from error
    state.save(folder / STATE_FOLDER)
    usage = trainer.training_usage
    if usage is None:
        return []
    session.billing.add(call, usage)
    write_usage(folder, usage)
    values = {
        "training_tokens": float(usage.total.training_tokens),
        "cost": float(usage.cost),
        **finite(trainer.stage_metrics),
    }
    return [IterationMetrics(iteration=call.iteration, values=values)]


@waiting_stage
def test(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Test the final models on the dataset named by ``call.detail``; write each answer.

    Reuses the test of the last iteration if available.
    """
    before = session.keys.tested_before(call.detail)
    tested = session.store.find(before.key) if before is not None else None
    if tested is not None:
        rollouts, usage = read_rollouts(session.store, tested.key), UsageMeter(call.stage)
        values = tested.metrics[0].values
    else:
        with session.watched(call):
            trainer = session.trainer_at(session.keys.final_state_key, calls=True)
            rollouts, metrics, usage = trainer.test("test", session.journal(call), call.detail)
        values = finite(metrics)
    _save(call, folder, session, rollouts, usage)
    groups = test_groups(session.keys.hyper_params)
    dataset = session.datasets[call.detail]
    is_played = getattr(session.keys.scenario, "label", None) is not None
    table = result_table(rollouts, session.protocol, dataset, groups, are_labels_played=is_played)
    write_table(folder, table)
    return [IterationMetrics(iteration=call.iteration, values=values)]


def _save(
    call: StageCall,
    folder: Path,
    session: TextArmSession,
    rollouts: NestedArrayDict,
    usage: UsageMeter,
) -> None:
    session.billing.add(call, usage)
    write_rollouts(folder, rollouts, session.protocol, session.keys.scenario.label_texts)
    write_usage(folder, usage)
