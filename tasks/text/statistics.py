"""The stage that computes the statistics of an iteration's rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, waiting_stage
from tasks.stages.session import STATE_FOLDER
from tasks.text.files import finite, has_rollouts, read_rollouts, write_readable
from tasks.text.session import TextArmSession

if TYPE_CHECKING:
    from trainers.text.staged import StagedTextTrainer


@waiting_stage
def log_stats(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Compute the statistics; write transcripts and prompts for people to read."""
    trainer = _trainer_before(call, session)
    key = session.keys.sample_rollouts(call.iteration).key
    if not has_rollouts(session.store, key):
        trainer.state.save(folder / STATE_FOLDER)
        return []
    rollouts = read_rollouts(session.store, key)
    metrics = trainer.compute_stats(call.iteration, rollouts)
    if session.keys.has_callbacks:
        trainer.state.save(folder / STATE_FOLDER)
    text_rl = session.keys.hyper_params.text_rl
    if text_rl.save_transcripts:
        write_readable(folder, rollouts, session.protocol, text_rl.transcript_format)
    return [IterationMetrics(iteration=call.iteration, values=finite(metrics))]


def _trainer_before(call: StageCall, session: TextArmSession) -> StagedTextTrainer:
    """Build the trainer; where there are callbacks, with the models and what those go on from.

    Callbacks continue from the iteration before, whose fine-tuning may not have heard of them.
    """
    keys = session.keys
    if not keys.has_callbacks:
        return session.new_trainer()
    trainer = session.trainer_at(keys.state_key(call.iteration))
    before = session.state_of(keys.log_stats(call.iteration - 1)) if call.iteration else None
    if before is not None:
        trainer.load_callbacks(before)
    return trainer
