"""The one stage of a trainer that has nothing but ``train()``."""

from __future__ import annotations

import json
from pathlib import Path

from ratchet.seeding import derive_seed, seeded_globals
from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, stage
from tasks.stages.session import STATE_FOLDER
from tasks.tensordict.session import ArmSession

HISTORY_FILE = "history.json"
_PURPOSE = "whole"
"""What its random numbers are drawn for; by another name, results would be others."""


@stage
def run_trainer(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Run ``train()``; write all it logged, and its state if it has one.

    The metrics of its own stages are told apart by a prefix, "STAGE/".
    """
    session.make_services_ready()
    trainer = session.rebuilt_trainer()
    with seeded_globals(derive_seed(session.keys.hyper_params.seed, _PURPOSE)):
        trainer.train()
    state = getattr(trainer, "state", None)
    if state is not None and hasattr(state, "save"):
        state.save(folder / STATE_FOLDER)
    records = [[entry.stage, entry.iteration, entry.values] for entry in trainer.history]
    (folder / HISTORY_FILE).write_text(json.dumps(records) + "\n")
    points: dict[int, dict[str, float]] = {}
    for entry in trainer.history:
        values = {f"{entry.stage}/{name}": value for name, value in entry.values.items()}
        points.setdefault(entry.iteration, {}).update(values)
    return [IterationMetrics(iteration=i, values=values) for i, values in sorted(points.items())]
