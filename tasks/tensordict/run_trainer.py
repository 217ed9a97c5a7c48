"""The one stage of a trainer that has nothing but ``train()``."""

from __future__ import annotations

import json
from pathlib import Path

from ratchet.seeding import derive_seed, seeded_globals
from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, stage
from tasks.tensordict.session import ArmSession

HISTORY_FILE = "history.json"
_PURPOSE = "whole"
"""What its random numbers are drawn for; by another name, results would be others."""


@stage
def run_trainer(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Run ``train()``; write all it logged, its last state, and those that it saved on the way.

    The metrics of its own stages are told apart by a prefix, "STAGE/".
    """
    session.make_services_ready()
    trainer = session.rebuilt_trainer()
    trainer.checkpoint_name = call.key  # of whatever run: the same stage goes on where one stopped
    with seeded_globals(derive_seed(session.keys.hyper_params.seed, _PURPOSE)):
        trainer.prepare_training()
        trainer.train()
    trainer.write_states(folder)
    records = [[entry.stage, entry.iteration, entry.values] for entry in trainer.history]
    (folder / HISTORY_FILE).write_text(json.dumps(records) + "\n")
    points: dict[int, dict[str, float]] = {}
    for entry in trainer.history:
        values = {f"{entry.stage}/{name}": value for name, value in entry.values.items()}
        points.setdefault(entry.iteration, {}).update(values)
    return [IterationMetrics(iteration=i, values=values) for i, values in sorted(points.items())]
