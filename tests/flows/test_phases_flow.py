"""Runs with phases give the same result after a kill; forks share phases."""

from __future__ import annotations

import pytest

from tests.tasks.phased import PARAMETERS, PHASES, POOLED

pytestmark = pytest.mark.slow


@pytest.mark.in_turn(4, of="kills")
def test_a_killed_run_gives_the_same_result(lab):
    hyper_params = {**PARAMETERS, "phases": POOLED}
    whole = lab.settings(store=str(lab.folder / "whole"), run_id="whole", iterations_per_task=9)
    expected = lab.run(hyper_params, whole)
    pieces = lab.settings(iterations_per_task=1)
    lab.kill("stage=train;iteration=5;within=0.3;seed=4", hyper_params, pieces)
    result = lab.run(hyper_params, pieces)
    assert result["states"] == expected["states"]
    stage = lab.folder / "whole" / "stages" / expected["states"]["main"]
    assert lab.weights(result) == lab.hashes(stage)
    assert sorted(lab.metrics(result)) == sorted(lab.metrics(expected))


def test_forks_share_the_phases_before_the_fork_point(lab):
    hyper_params = {**PARAMETERS, "phases": PHASES}
    parent = lab.run(hyper_params)
    changes = {"phases.joint.changes.rl.lr": 0.01, "phases.joint.num_iterations": 2}
    request = {"run": parent["run_id"], "from": 5, "changes": changes}
    fork = lab.run(hyper_params, action="fork", **request)
    assert fork["computed"] == 4, "the joint phase: its state, two training stages, the test"
    shared = {("train", i) for i in range(5)}
    metrics = {line[1:3]: line[3] for line in lab.metrics(fork)}
    before = {line[1:3]: line[3] for line in lab.metrics(parent)}
    assert all(metrics[place] == before[place] for place in shared)
    assert metrics["train", 5] != before["train", 5]
    assert ("train", 7) not in metrics
    again = lab.run(action="resume", run=parent["run_id"])
    assert (again["computed"], again["states"]) == (0, parent["states"])
