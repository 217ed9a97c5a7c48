"""Plans and runs name inputs of custom code, and libraries, that no key contains."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from flows import run_without_prefect
from flows.cli.main import app
from flows.runs.resolve import resolve_file
from flows.runs.verify import verify_run
from ratchet.parameters.settings import ExperimentSettings
from ratchet.tracking.run_folder import RunFolder

TRAINER = """
import os
from pathlib import Path
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer

class Mine(VanillaPpoTrainer):
    def _get_loss_module_and_gae(self):
        self.prompts = [each.read_text() for each in Path(__file__).parent.glob("prompts/*")]
        self.scale = Path(__file__).with_suffix(".json").read_text() + os.environ.get("SCALE", "1")
        return super()._get_loss_module_and_gae()
"""
EXPERIMENT = """
scenario: gymnasium
dataset: CartPole-v1
trainer: mine.py:Mine
gymnasium: {num_test_episodes: 2, num_train_seeds: 4}
rl: {num_iterations: 1, frames_per_batch: 24, minibatch_size: 8}
settings: {tracking: false, progress: none}
"""
UNDECLARED = "neither code nor declared: mine.json, prompts/a.txt, prompts/b.txt."
LINE = "`files: [mine.json, prompts/*.txt]`"
VARIABLE = "mine.py reads SCALE (line 9)"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TRAINER)
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "prompts").mkdir()
    for name in "ab":
        (tmp_path / "prompts" / f"{name}.txt").write_text(name)
    path = tmp_path / "mine.yaml"
    path.write_text(EXPERIMENT)
    return path


def run(file):
    """Run the experiment; return the result and the warnings so far."""
    result = run_without_prefect(str(file))
    events = RunFolder(result.folder).read_events()
    return result, [each["message"] for each in events if each["kind"] == "warning"]


def plan(file):
    result = CliRunner().invoke(app, ["plan", str(file)])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


@pytest.mark.slow
def test_undeclared_files_and_variables_are_named_once_with_the_line_to_add(file):
    assert VARIABLE in plan(file)
    result, warnings = run(file)
    assert result.computed > 3
    (files,) = (text for text in warnings if UNDECLARED in text)
    assert LINE in files
    assert len([text for text in warnings if VARIABLE in text]) == 1
    assert UNDECLARED in plan(file)
    assert run(file)[1] == warnings
    assert verify_run(result.run_id, ExperimentSettings(runs=str(file.parent / "runs"))).is_sound
    file.write_text(EXPERIMENT + LINE.strip("`"))
    result, warnings = run(file)
    assert result.computed > 2
    assert not any("neither code nor declared" in text for text in warnings)
    assert "neither code nor declared" not in plan(file)


@pytest.mark.slow
def test_a_file_that_changed_after_a_reused_stage_is_named(file):
    run(file)
    assert "changed since" not in plan(file)
    (file.parent / "prompts" / "b.txt").write_text("other")
    text = "prompts/b.txt: changed since the stored stage"
    assert text in plan(file)
    result, warnings = run(file)
    assert result.computed == 0
    assert len([each for each in warnings if text in each]) == 1


def test_other_versions_of_libraries_are_named_once(file, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            "tasks.stages.decorator.library_versions",
            lambda: {"torch": "1.0", "ratchet-experiments": "0.0"},
        )
        run(file)
    assert plan(file).count("Reused stages were computed with torch 1.0 (here ") == 1
    (text,) = (each for each in run(file)[1] if "Reused stages" in each)
    assert "ratchet-experiments" not in text


def test_the_line_to_add_contains_what_is_declared(file):
    file.write_text(EXPERIMENT + "files: [mine.json]")
    _, warnings = run(file)
    assert resolve_file(str(file)).arms["main"].files == ("mine.json",)
    assert any("`files: [mine.json, prompts/*.txt]`" in text for text in warnings)
