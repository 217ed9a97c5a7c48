"""What does each stage of an arm of a language trainer, by the stage's name. Imports Prefect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ratchet.errors import StateError
from ratchet.language_models.suites.running import run_suite
from ratchet.rollouts.transcripts import save_report_transcripts
from ratchet.scenarios.language_task.validation import VALIDATION
from ratchet.store.manifest import IterationMetrics
from tasks.language import playing_ahead
from tasks.language.keys import LanguageArmKeys
from tasks.language.serving import served
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, Stage, stage
from tasks.stages.session import STATE_FOLDER, TRANSCRIPTS_FILE
from tasks.stages.tables import write_table
from tasks.tensordict.session import ArmSession
from tasks.tensordict.stages import STAGES as NETWORK_STAGES
from trainers.language.rollouts import Rollouts
from trainers.language.trainer import LanguageTrainer

SUITE_LOG_FILE = "inspect_log.json"
VALIDATION_PREFIX = "validation_"


@stage
def rollouts(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Play what iteration ``call.iteration`` learns from; write it."""
    _, trainer = _of(session, call.iteration)
    if trainer.has_stopped:
        return []
    played = trainer.rollouts_of(call.iteration)
    session.holds(session.keys.state_key(call.iteration))
    played.save(folder)
    transcripts = trainer.transcripts("train", played.trajectories)
    save_report_transcripts(folder / TRANSCRIPTS_FILE, transcripts)
    return []


@stage
def train(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Continue from the state after ``call.start_iteration`` iterations; write the new state."""
    start, stop = call.start_iteration, call.iteration
    keys, trainer = _of(session, start)
    stored = session.store.find(keys.rollouts(start).key)
    found = Rollouts.load(session.store.open(stored.key)) if stored is not None else None
    if found is not None:
        trainer.give_rollouts(start, found)
    ahead = session.find_ahead(keys.rollouts(stop)) if keys.plays_ahead else None
    if ahead is not None:
        trainer.give_ahead(stop, partial(_read_ahead, ahead))
    metrics = trainer.run_iterations(start, stop)
    trainer.save_state(folder / STATE_FOLDER, call.key)
    session.holds(call.key)
    return [
        IterationMetrics(iteration=start + number, values=values)
        for number, values in enumerate(metrics)
    ]


@stage
def validate(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Play the validation set with the state after ``call.iteration`` iterations."""
    _, trainer = _of(session, call.iteration)
    result = trainer.evaluate(VALIDATION)
    session.holds(session.keys.state_key(call.iteration))
    write_table(folder, result.table)
    values = {f"{VALIDATION_PREFIX}{name}": value for name, value in result.metrics.items()}
    return [IterationMetrics(iteration=call.iteration, values=values)]


@stage
def suite(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Have the evaluation suite ``call.detail`` ask the model; keep its log."""
    keys, trainer = _of(session, call.iteration)
    asked, _ = keys.suite_asked(call.detail)
    with served(trainer.learner, chat=keys.hyper_params.language_task.chat) as model:
        result = run_suite(asked, model, folder / SUITE_LOG_FILE)
    session.holds(keys.state_key(call.iteration))
    write_table(folder, result.table)
    return [IterationMetrics(iteration=call.iteration, values=result.metrics)]


STAGES: dict[str, Stage[Any]] = {
    **NETWORK_STAGES,
    "rollouts": rollouts,
    "train": train,
    "validate": validate,
    "suite": suite,
}
STAGES_AHEAD: dict[str, Stage[Any]] = {**STAGES, "rollouts": playing_ahead.rollouts}
"""Of an arm that plays while it learns."""


def _of(session: ArmSession, iteration: int) -> tuple[LanguageArmKeys, LanguageTrainer]:
    """Return the arm's keys, and its trainer with the state after so many iterations."""
    keys = session.keys
    assert isinstance(keys, LanguageArmKeys)  # the stages of its family
    trainer = session.trainer_at(keys.state_key(iteration))
    assert isinstance(trainer, LanguageTrainer)
    return keys, trainer


def _read_ahead(wait: Callable[[], Path]) -> Rollouts:
    """Wait for what was played ahead, and read it."""
    folder = wait()
    found = Rollouts.load(folder)
    if found is None:
        raise StateError(f"{folder}: nothing was played, expected rollouts. Run `ratchet verify`.")
    return found
