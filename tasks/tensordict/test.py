"""The stage that tests the final state on one dataset."""

from __future__ import annotations

from pathlib import Path

from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, stage
from tasks.stages.tables import write_table
from tasks.tensordict.session import ArmSession
from trainers.staged import TEST_PREFIX


@stage
def test(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Test on the dataset named by ``call.detail``; write what was answered to each datapoint."""
    trainer = session.trainer_at(session.keys.state_key(call.iteration))
    result = trainer.run_test(call.detail)
    write_table(folder, result.table)
    values = {f"{TEST_PREFIX}{name}": value for name, value in result.metrics.items()}
    return [IterationMetrics(iteration=call.iteration, values=values)]


test.__test__ = False  # type: ignore[attr-defined]  # not a test case, whatever its name
