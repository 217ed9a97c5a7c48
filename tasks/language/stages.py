"""What does each stage of an arm of a language trainer, by the stage's name. Imports Prefect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.language_models.suites.running import run_suite
from ratchet.rollouts.trajectory import load_trajectories, save_trajectories
from ratchet.rollouts.transcripts import save_report_transcripts
from ratchet.scenarios.language_task.validation import VALIDATION
from ratchet.store.manifest import IterationMetrics
from tasks.language.keys import TRAJECTORIES_FILE, LanguageArmKeys
from tasks.language.serving import served
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, Stage, stage
from tasks.stages.session import STATE_FOLDER, TRANSCRIPTS_FILE
from tasks.stages.tables import write_table
from tasks.tensordict.session import ArmSession
from tasks.tensordict.stages import STAGES as NETWORK_STAGES
from trainers.language.trainer import LanguageTrainer, Rollouts

if TYPE_CHECKING:
    from ratchet.store.store import StageStore

SUITE_LOG_FILE = "inspect_log.json"
PLAYED_FILE = "played.json"
VALIDATION_PREFIX = "validation_"


@stage
def rollouts(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Play what iteration ``call.iteration`` learns from; write it."""
    _, trainer = _of(session, call.iteration)
    if trainer.has_stopped:
        return []
    played = trainer.rollouts_of(call.iteration)
    save_trajectories(played.trajectories, folder / TRAJECTORIES_FILE)
    transcripts = trainer.transcripts("train", played.trajectories)
    save_report_transcripts(folder / TRANSCRIPTS_FILE, transcripts)
    about = {"metrics": played.metrics, "cursor": played.cursor}
    (folder / PLAYED_FILE).write_text(json.dumps(about, sort_keys=True) + "\n", encoding="utf-8")
    return []


@stage
def train(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Continue from the state after ``call.start_iteration`` iterations; write the new state."""
    start, stop = call.start_iteration, call.iteration
    keys, trainer = _of(session, start)
    found = _read_rollouts(session.store, keys.rollouts(start).key)
    if found is not None:
        trainer.give_rollouts(start, found)
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


def _of(session: ArmSession, iteration: int) -> tuple[LanguageArmKeys, LanguageTrainer]:
    """Return the arm's keys, and its trainer with the state after so many iterations."""
    keys = session.keys
    assert isinstance(keys, LanguageArmKeys)  # the stages of its family
    trainer = session.trainer_at(keys.state_key(iteration))
    assert isinstance(trainer, LanguageTrainer)
    return keys, trainer


def _read_rollouts(store: StageStore, key: str) -> Rollouts | None:
    """Read what a stage has played; None if it isn't stored, or a callback had stopped the run."""
    if store.find(key) is None:
        return None
    folder = store.open(key)
    if not (folder / PLAYED_FILE).is_file():
        return None
    about = json.loads((folder / PLAYED_FILE).read_bytes())
    return Rollouts(
        load_trajectories(folder / TRAJECTORIES_FILE), about["metrics"], about["cursor"]
    )
