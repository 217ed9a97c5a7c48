"""The stage that does some iterations of training."""

from __future__ import annotations

from pathlib import Path

from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, stage
from tasks.stages.session import STATE_FOLDER
from tasks.tensordict.session import ArmSession


@stage
def train(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Continue from the state after ``call.start_iteration`` iterations; write the new state.

    The metrics of iteration i were measured while it ran, i.e. they have the number i.
    """
    start, stop = call.start_iteration, call.iteration
    keys = session.keys
    trainer = session.trainer_at(keys.beginning_key(start), keys.phase_before(stop))
    metrics = trainer.run_iterations(start, stop)
    trainer.save_state(folder / STATE_FOLDER, call.key)
    session.holds(call.key)
    return [
        IterationMetrics(iteration=start + number, values=values)
        for number, values in enumerate(metrics)
    ]
