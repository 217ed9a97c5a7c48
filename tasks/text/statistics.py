"""The stage that computes the statistics of an iteration's rollouts."""

from __future__ import annotations

from pathlib import Path

from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, waiting_stage
from tasks.text.files import finite, read_rollouts, write_readable
from tasks.text.session import TextArmSession


@waiting_stage
def log_stats(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Compute the statistics; write transcripts and prompts for people to read."""
    trainer = session.new_trainer()
    rollouts = read_rollouts(session.store, session.keys.sample_rollouts(call.iteration).key)
    metrics = trainer.compute_stats(call.iteration, rollouts)
    text_rl = session.keys.hyper_params.text_rl
    if text_rl.save_transcripts:
        write_readable(folder, rollouts, session.protocol, text_rl.transcript_format)
    return [IterationMetrics(iteration=call.iteration, values=finite(metrics))]
