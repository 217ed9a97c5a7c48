"""The stages in which agents play: rollouts to learn from, and tests.

Every finished call is kept in a journal until the stage is stored, so that a killed stage pays
again for the calls in flight only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.language_models.usage import UsageMeter
from ratchet.parameters.declared_groups import test_groups
from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, waiting_stage
from tasks.stages.tables import Table, write_table
from tasks.text.files import (
    finite,
    read_rollouts,
    result_table,
    usage_metrics,
    write_played,
    write_usage,
)
from tasks.text.session import TextArmSession

if TYPE_CHECKING:
    from ratchet.rollouts.nested_array_dict import NestedArrayDict


@waiting_stage
def sample_rollouts(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Play the rollouts of an iteration; write them, their transcripts and what they cost."""
    with session.watched(call):
        trainer = session.trainer_at(session.keys.state_key(call.iteration), calls=True)
        if trainer.has_stopped:
            return []
        rollouts, usage = trainer.sample_rollouts(call.iteration, session.journal(call))
    _keep(call, folder, session, rollouts, usage)
    values = {**usage_metrics(usage), **finite(trainer.stage_metrics)}
    return [IterationMetrics(iteration=call.iteration, values=values)]


@waiting_stage
def test_during_training(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Test the models at the beginning of an iteration, on the same datapoints in each."""
    with session.watched(call):
        trainer = session.trainer_at(session.keys.state_key(call.iteration), calls=True)
        if trainer.has_stopped:
            return []
        rollouts, metrics, usage = trainer.test(call.iteration, session.journal(call))
    _keep(call, folder, session, rollouts, usage)
    return [IterationMetrics(iteration=call.iteration, values=finite(metrics))]


@waiting_stage
def test(call: StageCall, folder: Path, session: TextArmSession) -> Metrics:
    """Test the final models on the dataset named by ``call.detail``; write each answer.

    What the last iteration of training has played already is not played again.
    """
    before = session.keys.tested_before(call.detail)
    tested = session.store.find(before.key) if before is not None else None
    if tested is not None:
        rollouts = read_rollouts(session.store, tested.key)
        _keep(call, folder, session, rollouts, UsageMeter(call.stage))
        write_table(folder, _table(call, session, rollouts))
        return [IterationMetrics(iteration=call.iteration, values=tested.metrics[0].values)]
    with session.watched(call):
        trainer = session.trainer_at(session.keys.final_state_key, calls=True)
        rollouts, metrics, usage = trainer.test("test", session.journal(call), call.detail)
    _keep(call, folder, session, rollouts, usage)
    write_table(folder, _table(call, session, rollouts))
    return [IterationMetrics(iteration=call.iteration, values=finite(metrics))]


test.__test__ = False  # type: ignore[attr-defined]  # not a test case, whatever its name
test_during_training.__test__ = False  # type: ignore[attr-defined]


def _table(call: StageCall, session: TextArmSession, rollouts: NestedArrayDict) -> Table:
    """Return the results of a test, with the columns that tell kinds of datapoints apart."""
    groups = test_groups(session.keys.hyper_params)
    return result_table(rollouts, session.protocol, session.datasets[call.detail], groups)


def _keep(
    call: StageCall,
    folder: Path,
    session: TextArmSession,
    rollouts: NestedArrayDict,
    usage: UsageMeter,
) -> None:
    session.spending.add(call, usage)
    write_played(folder, rollouts, session.protocol, session.keys.scenario.label_texts)
    write_usage(folder, usage)
