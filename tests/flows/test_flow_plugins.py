"""Runs with a scenario or network in a user's file are cached and resumed like others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMON: dict[str, Any] = {
    "trainer": "vanilla_ppo",
    "dataset": "generated",
    "interaction_protocol": "adp",
    "rl": {
        "frames_per_batch": 32,
        "minibatch_size": 8,
        "num_iterations": 4,
        "num_test_iterations": 2,
    },
}
CASES = {
    "scenario": {"scenario": "custom_scenario.py:Cards", "cards": {"num_deals": 60}},
    "network": {
        "scenario": "binary_erasure_channel",
        "binary_erasure_channel": {"num_datapoints": 60},
        "agents": {"verifier": {"network": "custom_network.py:RecurrentBody"}},
    },
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["scenario", "network"])
def test_a_killed_run_gives_bitwise_the_same_result(new_lab, case):
    given = {**COMMON, **CASES[case]}
    undisturbed, lab = new_lab(), new_lab()
    small = {"base_dir": str(EXAMPLES), "iterations_per_task": 2}
    expected = undisturbed.run(given, undisturbed.settings(**small))
    lab.kill("stage=train;iteration=4;within=0.05;seed=1", given, lab.settings(**small))
    result = lab.run(given, lab.settings(**small))
    assert result["cached"] > 0, "stages finished before the kill are stored"
    assert lab.weights(result) == undisturbed.weights(expected)
    assert lab.metrics(result) == undisturbed.metrics(expected)
    again = lab.run(given, lab.settings(**small))
    assert (again["computed"], again["cached"]) == (0, result["computed"] + result["cached"])
    resumed = lab.run(action="resume", run=result["run_id"], settings=lab.settings(**small))
    assert resumed["computed"] == 0
