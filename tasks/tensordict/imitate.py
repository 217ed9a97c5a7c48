"""The stages in which agents learn from what others do, and that put it into the state."""

from __future__ import annotations

import json
from pathlib import Path

from ratchet.errors import DataError
from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.datasets import DATASETS_FILE, TRAIN_DATASET
from tasks.stages.decorator import Metrics, stage
from tasks.stages.session import STATE_FOLDER
from tasks.tensordict.rollouts import ROLLOUTS_FILE
from tasks.tensordict.session import ArmSession

IMITATED_FOLDER = "imitated"


@stage
def imitate(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Have the agent named by ``call.detail`` learn from its model, and write its weights."""
    keys = session.keys
    trainer = session.trainer_at(keys.state_to_imitate_from().key)
    files = [_rollouts(session, key) for key in keys.imitated_rollouts]
    result = trainer.imitate(call.detail, files)
    result.save(folder / IMITATED_FOLDER)
    return [
        IterationMetrics(iteration=iteration, values=values)
        for iteration, values in enumerate(result.metrics)
    ]


def _rollouts(session: ArmSession, key: str) -> Path:
    """Return the file of a run's rollouts; DataError if they are about other training data."""
    stored = session.store.peek(key)
    theirs = None if stored is None else stored.inputs["data"]
    ours = session.keys.build_scenario().key
    if isinstance(theirs, str) and theirs != ours:  # made by other code, perhaps
        digests = [_train_digest(session, data) for data in (ours, theirs)]
        if digests[0] != digests[1]:
            raise DataError(
                f"imitation.source: got {session.keys.hyper_params.imitation.source!r}, whose"
                " rollouts are about other training data, expected the same: give both runs the"
                " same parameters of the data, and one dataset_seed or seed."
            )
    return session.store.open(key) / ROLLOUTS_FILE


def _train_digest(session: ArmSession, key: str) -> object:
    return json.loads((session.store.open(key) / DATASETS_FILE).read_text())[TRAIN_DATASET]


@stage
def imitated_state(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Put what was learned by imitation into the state."""
    from trainers.staged import PretrainResult

    keys = session.keys
    trainer = session.trainer_at(keys.state_to_imitate_from().key)
    for agent in keys.imitating_agents:
        folder_of_agent = session.store.open(keys.imitate(agent).key) / IMITATED_FOLDER
        trainer.load_imitated(agent, PretrainResult.load(folder_of_agent))
    trainer.save_state(folder / STATE_FOLDER, call.key)
    return []
