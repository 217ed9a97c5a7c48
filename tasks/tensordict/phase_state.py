"""The stage that makes the state with which a phase of training begins."""

from __future__ import annotations

from pathlib import Path

from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, stage
from tasks.stages.session import STATE_FOLDER
from tasks.tensordict.session import ArmSession


@stage
def phase_state(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Go on with the agents of the phase before, the optimizer made anew; write the state."""
    keys = session.keys
    before = keys.state_key(call.iteration)
    trainer = session.trainer_taking_over(before, keys.phase_from(call.iteration))
    trainer.save_state(folder / STATE_FOLDER, call.key)
    session.holds(call.key)
    return []
