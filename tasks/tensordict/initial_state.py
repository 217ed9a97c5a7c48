"""The stages that make the state before the first iteration."""

from __future__ import annotations

from pathlib import Path

from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, stage
from tasks.stages.session import STATE_FOLDER
from tasks.tensordict.pretrain import PRETRAINED_FOLDER
from tasks.tensordict.session import ArmSession


@stage
def initial_state(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Draw the initial weights, fit what is fitted before training, and write the state."""
    session.fresh_trainer().save_state(folder / STATE_FOLDER, call.key)
    return []


@stage
def pretrained_state(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Put what was pretrained into the initial state."""
    from trainers.staged import PretrainResult

    keys = session.keys
    trainer = session.trainer_at(keys.initial_state().key)
    for agent in keys.pretrained_agents:
        folder_of_agent = session.store.open(keys.pretrain(agent).key) / PRETRAINED_FOLDER
        trainer.load_pretrained(agent, PretrainResult.load(folder_of_agent))
    trainer.save_state(folder / STATE_FOLDER, call.key)
    return []
