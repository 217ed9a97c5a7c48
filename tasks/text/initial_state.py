"""The stage that makes the state before any training: which model plays each agent."""

from __future__ import annotations

from pathlib import Path

from tasks.calls import StageCall
from tasks.session import STATE_FOLDER
from tasks.stage import Metrics, waiting_stage
from tasks.text_session import TextArmSession


@waiting_stage
def initial_state(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Write the state at the beginning of the first iteration."""
    session.new_trainer().initial_state().save(folder / STATE_FOLDER)
    return []
