"""The stage that trains one agent alone before the game begins."""

from __future__ import annotations

from pathlib import Path

from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, stage
from tasks.stages.tables import write_table
from tasks.tensordict.session import ArmSession

PRETRAINED_FOLDER = "pretrained"


@stage
def pretrain(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Train the agent named by ``call.detail`` and write its weights and test predictions."""
    trainer = session.trainer_at(session.keys.initial_state().key)
    result = trainer.pretrain(call.detail)
    result.save(folder / PRETRAINED_FOLDER)
    if result.table:
        write_table(folder, result.table)
    return [
        IterationMetrics(iteration=epoch, values=values)
        for epoch, values in enumerate(result.metrics)
    ]
