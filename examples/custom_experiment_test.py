"""Test of an experiment: it can be planned, and it runs with one step of each loop.

Run it:  python -m pytest examples/custom_experiment_test.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from flows import plan_experiment, run_without_prefect
from ratchet import ExperimentSettings

FILE = Path(__file__).with_name("custom_scenario.yaml")


@pytest.fixture
def settings(tmp_path: Path) -> ExperimentSettings:
    """Store runs and stages in the test's folder, without MLflow."""
    folders = {"home": str(tmp_path / "home"), "runs": str(tmp_path / "runs")}
    return ExperimentSettings(**folders, tracking=False, progress="none", test_run=True)


def test_the_experiment_can_be_planned(settings: ExperimentSettings) -> None:
    """Check names, parameters and the scenario's code without computing a stage."""
    stages = plan_experiment(FILE, settings)
    assert [stage.stage for stage in stages if stage.hit] == []


def test_the_experiment_runs(settings: ExperimentSettings) -> None:
    """Compute every stage, each loop with one step."""
    result = run_without_prefect(FILE, settings)
    assert result.metrics["main"]["test"]
