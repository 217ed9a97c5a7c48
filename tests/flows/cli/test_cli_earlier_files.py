"""Parameter files of the earlier system are planned like others (reduced by overrides)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from ratchet.plugins import load_module

earlier = load_module(Path(__file__).parents[2] / "parameters" / "earlier_system.py")
SMALL = {
    "graph_isomorphism": ["dataset=er100", "rl.num_iterations=1", "agents._default.d_gnn=4"],
    "image_classification": ["dataset=digits", "rl.num_iterations=1", "solo_agent.num_epochs=1"],
    "code_validation": [
        "dataset=generated",
        "rl.rollouts_per_iteration=4",
        "rl.num_iterations=1",
        "agents._default.use_dummy_api=true",
    ],
}


@pytest.mark.parametrize(("scenario", "trainer"), earlier.COMBINATIONS)
def test_every_combination_is_planned(tmp_path, monkeypatch, scenario, trainer):
    monkeypatch.chdir(tmp_path)
    Path("params.json").write_text(json.dumps(earlier.written(scenario, trainer)))
    result = CliRunner().invoke(app, ["plan", "params.json", *SMALL[scenario]])
    assert result.exit_code == 0, result.output
    for stage in ("build_scenario", "initial_state", "test"):
        assert stage in result.stdout


def test_all_invalid_values_are_reported_in_one_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = earlier.written("graph_isomorphism", "vanilla_ppo")
    data["rl"]["frames_per_bath"] = 3
    data["test_dataset_split"] = "validation"
    Path("params.json").write_text(json.dumps(data))
    result = CliRunner().invoke(app, ["plan", "params.json"])
    assert result.exit_code == 2
    assert "rl.frames_per_bath: unknown parameter (value 3). Did you mean" in result.stderr
    assert "test_dataset_split: unknown parameter (value 'validation'). To test" in result.stderr
