"""A fork within a started phase keeps how the phase was started, or is refused."""

from __future__ import annotations

import pytest

from flows.runs.derived_runs import resolve_fork
from ratchet.errors import ParameterError
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.manifest import RunManifest, StageRecord
from ratchet.tracking.run_folder import RunFolder
from tests.tasks.phased import POOLED, parameters


@pytest.fixture(scope="module")
def fork(tmp_path_factory):
    """Return a function that forks a run with phases from 0, 3, 5 and states after 4, 5, 6."""
    settings = ExperimentSettings(runs=str(tmp_path_factory.mktemp("runs")))
    stages = [StageRecord(stage="train", iteration=i, key="0" * 64, hit=False) for i in (4, 5, 6)]
    arms = {"main": parameters(POOLED).to_dict()}
    RunFolder.create(
        settings.runs, RunManifest(run_id="parent", name="parent", arms=arms, stages=stages)
    )
    return lambda iteration, **changes: resolve_fork("parent", iteration, changes, settings)


@pytest.mark.parametrize(
    ("iteration", "changes", "message"),
    [
        (6, {"phases.joint.partners.prover.every": 2}, r"phases\.joint: .* pools from .*4, 5.* to"),
        (6, {"phases.joint.partners": {"prover": "frozen"}}, r"phases\.joint: .* changes pools"),
        (4, {"phases.answer.fresh": ["prover"]}, r"phases\.answer: .* agents that are fresh"),
        (
            4,
            {"phases.alone.num_iterations": 2, "phases.answer.num_iterations": 3},
            r"phases\.answer: .* its first iteration from 3 to 2.*--from 2",
        ),
    ],
)
def test_initial_parameters_of_a_started_phase_cannot_change(fork, iteration, changes, message):
    with pytest.raises(ParameterError, match=message):
        fork(iteration, **changes)


def test_a_fork_is_listed_in_its_parents_mlflow_experiment(fork):
    assert fork(6).settings.experiment_name == "parent"
    assert fork(6).run_id.startswith("parent-fork-")


def test_other_parameters_and_later_phases_may_change(fork):
    assert fork(6, **{"phases.joint.changes.rl.lr": 0.1, "phases.joint.num_iterations": 9})
    assert fork(5, **{"phases.joint.partners.prover": "frozen", "phases.joint.fresh": ["prover"]})
    assert fork(4, **{"phases.joint.partners.prover.every": 2})
