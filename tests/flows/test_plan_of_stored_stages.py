"""Plans show which stored stages are reused, and how they differ from this version."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from flows import plan_experiment, run_without_prefect
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking import environment
from ratchet.tracking.environment import library_versions

TRAINER = Path(__file__).with_name("tiny_trainer.py")


@pytest.fixture
def settings(lab: Any, tmp_path: Path) -> ExperimentSettings:
    """Settings of a run whose stages are stored; its trainer is a copy in the base folder."""
    shutil.copy(TRAINER, tmp_path)
    settings = ExperimentSettings.from_dict(lab.settings(base_dir=str(tmp_path)))
    result = run_without_prefect(lab.hyper_params(), settings, name="tiny")
    return settings.model_copy(update={"run_id": result.run_id})


def test_changed_code_is_planned_unless_the_runs_stages_are_kept(
    lab: Any, settings: ExperimentSettings
) -> None:
    copy = Path(str(settings.base_dir), "tiny_trainer.py")
    text = copy.read_text()
    copy.write_text(text.replace("    State = TinyState", "    State = TinyState\n    changed = 1"))
    assert copy.read_text() != text
    missing = [stage for stage in plan_experiment(lab.hyper_params(), settings) if not stage.hit]
    assert missing
    assert "tiny_trainer" in missing[0].reason
    kept = plan_experiment(lab.hyper_params(), settings, keep=True)
    assert all(stage.hit for stage in kept)
    assert {stage.reason for stage in kept} >= {"kept from an earlier run"}


def test_another_version_of_a_library_is_named(
    lab: Any, settings: ExperimentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {stage.reason for stage in plan_experiment(lab.hyper_params(), settings)} == {"stored"}
    versions = library_versions()
    monkeypatch.setattr(environment, "library_versions", lambda: {**versions, "numpy": "9.9"})
    (reason,) = {stage.reason for stage in plan_experiment(lab.hyper_params(), settings)}
    assert reason == f"stored (made with numpy {versions['numpy']}, here 9.9)"
