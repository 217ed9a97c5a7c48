"""The stage that tests the final state on one dataset."""

from __future__ import annotations

from pathlib import Path

from ratchet.rollouts.transcripts import save_report_transcripts
from ratchet.seeding import derive_seed, seeded_globals
from ratchet.store.manifest import IterationMetrics
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, stage
from tasks.stages.session import TRANSCRIPTS_FILE, film_name
from tasks.stages.tables import write_table
from tasks.tensordict.session import ArmSession
from trainers.sampled_tests import dataset_of
from trainers.staged import TEST_PREFIX


@stage
def test(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Test on the dataset that ``call.detail`` names; write what was answered to each datapoint.

    Whatever phase has made the state, the agents themselves play, by the experiment's parameters.
    """
    if not session.keys.is_staged:
        return _run_test_loop(call, session)
    key = session.keys.state_key(call.iteration)
    is_of_phase = bool(session.keys.phases)
    trainer = session.trainer_taking_over(key, None) if is_of_phase else session.trainer_at(key)
    dataset, is_sampled = dataset_of(call.detail)
    result = trainer.run_sampled_test(dataset) if is_sampled else trainer.run_test(dataset)
    write_table(folder, result.table)
    for index, film in enumerate(result.films):
        path = folder / film_name(index)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(film)
    if result.transcripts:
        save_report_transcripts(folder / TRANSCRIPTS_FILE, result.transcripts)
    values = {f"{TEST_PREFIX}{name}": value for name, value in result.metrics.items()}
    return [IterationMetrics(iteration=call.iteration, values=values)]


def _run_test_loop(call: StageCall, session: ArmSession) -> Metrics:
    """Run an own loop's test with a state that it has saved: the means of what it logs."""
    session.make_services_ready()
    trainer = session.rebuilt_trainer()
    with seeded_globals(derive_seed(session.keys.hyper_params.seed, "test")):
        trainer.load_state_from(session.keys.tested_states[call.iteration].open())
        trainer.run_own_test()
    logged: dict[str, list[float]] = {}
    for record in trainer.history:
        for name, value in record.values.items():
            logged.setdefault(name, []).append(value)
    values = {name: sum(found) / len(found) for name, found in logged.items()}
    return [IterationMetrics(iteration=call.iteration, values=values)]


test.__test__ = False  # type: ignore[attr-defined]  # not a test case, whatever its name
