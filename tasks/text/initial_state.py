"""The stage that makes the state before any training: which model plays each agent."""

from __future__ import annotations

from pathlib import Path

from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, waiting_stage
from tasks.stages.session import STATE_FOLDER
from tasks.text.session import TextArmSession


@waiting_stage
def initial_state(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Write the state at the beginning of the first iteration."""
    session.new_trainer().initial_state().save(folder / STATE_FOLDER)
    return []
