"""The stages of arms of language trainers that differ from those of networks."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import StateError
from ratchet.language_models.endpoints import ModelAddress
from ratchet.language_models.suites.running import run_suite
from ratchet.rollouts.transcripts import save_report_transcripts
from ratchet.scenarios.language_task.validation import VALIDATION
from ratchet.service import EmbeddedService
from ratchet.store.manifest import IterationMetrics
from tasks.language.keys import LanguageArmKeys
from tasks.language.session import LanguageArmSession
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, Stage, stage
from tasks.stages.files import STATE_FOLDER, TRANSCRIPTS_FILE, write_table
from tasks.tensordict.session import ArmSession
from trainers.base import copying_beside
from trainers.language.rollouts import Rollouts
from trainers.language.state import LanguageState
from trainers.language.trainer import LanguageTrainer

if TYPE_CHECKING:
    from trainers.language.base import BaseTrainer

SUITE_LOG_FILE = "inspect_log.json"
VALIDATION_PREFIX = "validation_"
_TEMPLATE_FILE = "chat_template.jinja"
_PLAIN_TEXT = "{%- for message in messages -%}{{- message['content'] -}}{%- endfor -%}"
_SHUTDOWN_SECONDS = 10.0


@stage
def rollouts(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Sample and write the rollouts that iteration ``call.iteration`` trains on."""
    keys, trainer = _keys_and_trainer(session, call.iteration, begins=True)
    if trainer.has_stopped:
        return []
    key = keys.beginning_key(call.iteration)
    sampled = session.take_ahead(key) or trainer.rollouts_of(call.iteration)
    session.holds(key)
    sampled.save(folder)
    transcripts = trainer.transcripts("train", sampled.trajectories)
    save_report_transcripts(folder / TRANSCRIPTS_FILE, transcripts)
    return []


def _prefetch_rollouts(call: StageCall, folder: Path, session: LanguageArmSession) -> Metrics:
    """Sample an iteration's rollouts in another process, with the weights one iteration back.

    Starts from the iteration's own state if it is stored already, since it contains them.
    """
    keys, store = session.keys, session.store
    iteration = call.iteration
    is_stale = session.fresh and session.is_running(call)  # the stored state will be recomputed
    if is_stale or store.find(keys.state_key(iteration)) is None:
        iteration = max(iteration - 1, 0)
    cursor = None
    if iteration == 0 and call.iteration == 1:  # only later states contain the cursor
        first = Rollouts.load(store.open(keys.rollouts(0).key))
        cursor = None if first is None else first.cursor
    state = session.state_folder(keys.state_key(iteration))
    wait = session.rollout_worker.play(
        state,
        call.iteration,
        folder,
        beginning=session.state_folder(LanguageState.initial_of(state)),
        cursor=cursor,
        transcripts=TRANSCRIPTS_FILE,
    )
    wait()
    return []


prefetch_rollouts = Stage(_prefetch_rollouts, alone=False, name="rollouts")
"""Replaces ``rollouts`` in arms that sample while they train."""


@stage
def train(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Continue from the state after ``call.start_iteration`` iterations; write the new state."""
    start, stop = call.start_iteration, call.iteration
    keys, trainer = _keys_and_trainer(session, start, begins=True)
    stored = session.store.find(keys.rollouts(start).key)
    sampled = session.take_ahead(keys.beginning_key(start))
    if stored is not None:
        sampled = Rollouts.load(session.store.open(stored.key))
    if sampled is not None:
        trainer.give_rollouts(start, sampled)
    wait = session.find_result(keys.rollouts(stop)) if keys.plays_ahead else None
    if wait is not None:
        trainer.give_ahead(stop, partial(_read_prefetched, wait))
    metrics = trainer.run_iterations(start, stop)
    with copying_beside(trainer.settings.device):
        if not trainer.has_stopped:  # sampling does not change the state
            following = keys.rollouts_during_write(call)
            session.compute_ahead(call.key, following, partial(trainer.rollouts_of, stop))
        trainer.save_state(folder / STATE_FOLDER, call.key)
    session.holds(call.key)
    return [
        IterationMetrics(iteration=start + number, values=values)
        for number, values in enumerate(metrics)
    ]


def _read_prefetched(wait: Callable[[], Path]) -> Rollouts:
    """Wait for prefetched rollouts and read them."""
    folder = wait()
    sampled = Rollouts.load(folder)
    if sampled is None:
        raise StateError(f"{folder}: no rollouts, expected some. Run `ratchet verify`.")
    return sampled


@stage
def validate(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Evaluate the state after ``call.iteration`` iterations on the validation set."""
    _, trainer = _keys_and_trainer(session, call.iteration)
    result = trainer.evaluate(VALIDATION)
    session.holds(session.keys.state_key(call.iteration))
    write_table(folder, result.table)
    values = {f"{VALIDATION_PREFIX}{name}": value for name, value in result.metrics.items()}
    return [IterationMetrics(iteration=call.iteration, values=values)]


@stage
def suite(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Evaluate the model on the evaluation suite ``call.detail``; write the suite's log."""
    keys, trainer = _keys_and_trainer(session, call.iteration)
    evaluation, _ = keys.find_suite(call.detail)
    with served(trainer.learner, chat=keys.hyper_params.language_task.chat) as model:
        result = run_suite(evaluation, model, folder / SUITE_LOG_FILE)
    session.holds(keys.state_key(call.iteration))
    write_table(folder, result.table)
    return [IterationMetrics(iteration=call.iteration, values=result.metrics)]


def _keys_and_trainer(
    session: ArmSession, iteration: int, *, begins: bool = False
) -> tuple[LanguageArmKeys, LanguageTrainer]:
    """Return the arm's keys, and its trainer with the state after this many iterations.

    With ``begins`` as the next iteration continues from it, in that iteration's phase.
    """
    keys = session.keys
    assert isinstance(keys, LanguageArmKeys)  # the stages of its family
    if begins:
        trainer = session.trainer_at(keys.beginning_key(iteration), keys.phase_from(iteration))
    else:
        trainer = session.trainer_at(keys.state_key(iteration), keys.testing_phase(iteration))
    assert isinstance(trainer, LanguageTrainer)
    return keys, trainer


@contextmanager
def served(learner: BaseTrainer, *, chat: bool) -> Iterator[ModelAddress]:
    """Serve the current model for the duration of the block.

    A model in this process gets a temporary service. Without ``chat`` it reads messages as plain
    text, as in training.
    """
    address = learner.address()
    if address is not None:
        yield address
        return
    with tempfile.TemporaryDirectory(prefix="ratchet-served-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        folder = home / "model"
        learner.save_whole_model(folder)
        if not chat:
            (folder / _TEMPLATE_FILE).write_text(_PLAIN_TEXT, encoding="utf-8")
        with EmbeddedService.start(home, model=str(folder)) as service:
            try:
                yield ModelAddress(service.url, service.model)
            finally:
                _terminate(service.pid)


def _terminate(pid: int) -> None:
    """Terminate a temporary service before its folder is deleted."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _SHUTDOWN_SECONDS
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
