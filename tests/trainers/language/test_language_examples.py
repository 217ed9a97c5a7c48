"""Examples of custom trainers run as their headers state, from any working folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.planning.plan import plan
from flows.runs.resolve import resolve_file
from ratchet.scenarios.registry import build_scenario, build_scenario_instance
from trainers.language.self_hosted import SelfHostedTrainer
from trainers.language.trainer import LanguageTrainer
from trainers.registry import trainer_class

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "language"
SHORT = [
    "trainer.total_train_steps=2",
    "language.tasks_per_step=2",
    "language.group_size=2",
    "language_task.num_train=16",
    "language_task.num_test=4",
    "agents._default.warm_up.num_steps=2",
    "settings.progress=none",
]
CASES = {
    "my_task.yaml": ("MyCustomTrainer", "custom/advantage_mean"),
    "my_algorithm.yaml": ("MyTrainer", "algorithm/advantage_max"),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A working folder that differs from the examples'."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_the_example_learns_and_is_tested(name):
    class_name, metric = CASES[name]
    resolved = resolve_file(str(EXAMPLES / name), SHORT)
    given, settings = resolved.arms["main"], resolved.settings
    found = trainer_class(given, settings.base_dir)
    assert issubclass(found, LanguageTrainer)
    assert issubclass(found.learner_class, SelfHostedTrainer)
    assert found.learner_class.__name__ == class_name
    instance = build_scenario_instance(
        given, settings, trainer_type=found.trainer_type, base_dir=settings.base_dir
    )
    trainer = found(given, instance, settings)
    trainer.initial_state()
    metrics = trainer.run_iterations(0, 2)
    assert len(metrics) == 2
    assert all(metric in one and "actor/loss" in one for one in metrics)
    assert trainer.run_test().metrics["num_datapoints"] == 4


@pytest.mark.parametrize("name", [*CASES, "my_remote_task.yaml"])
def test_there_are_as_many_tasks_as_an_example_asks_for(name):
    given = resolve_file(str(EXAMPLES / name), []).arms["main"]
    made = build_scenario("language_task").build_datasets(given)
    assert {side: len(tasks) for side, tasks in made.items()} == {"train": 512, "test": 64}


def copied(folder: Path) -> Path:
    folder.mkdir()
    for file in EXAMPLES.glob("my_*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def keys_of(path: Path) -> dict[str, str]:
    return {stage.stage: stage.key for stage in plan(resolve_file(str(path), SHORT))}


@pytest.mark.slow
def test_what_a_trainer_imports_by_dots_is_in_the_keys_and_its_place_is_not(tmp_path):
    one = copied(tmp_path / "one")
    before = keys_of(one / "my_algorithm.yaml")
    assert before == keys_of(copied(tmp_path / "two") / "my_algorithm.yaml")
    algorithm = one / "my_algorithm.py"
    algorithm.write_text(algorithm.read_text().replace("whiten_tokens(returns, mask)", "returns"))
    after = keys_of(one / "my_algorithm.yaml")
    assert after["train"] != before["train"]
    assert after["build_scenario"] == before["build_scenario"]
    plain = keys_of(one / "my_task.yaml")
    assert plain == keys_of(EXAMPLES / "my_task.yaml")


def test_validation_is_a_stage_beside_training():
    validated = ["language.validate_every=1", "language_task.num_validation=2"]
    stages = plan(resolve_file(str(EXAMPLES / "my_task.yaml"), [*SHORT, *validated]))
    assert [stage.iteration for stage in stages if stage.stage == "validate"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["trainer.custom_trainer_module_path=no.py"], "there is no file"),
        (["trainer.custom_trainer_class_name=MyCustomTrainr"], "Did you mean 'MyCustomTrainer'?"),
        (["trainer.custom_trainer_class_name=torch"], "expected a class"),
        (["trainer.custom_trainer_module_path=broken.py"], "SyntaxError"),
        (["trainer.custom_trainer_module_path=importing.py"], "No module named 'not_there'"),
        (["trainer.custom_trainer_module_path=dotted.py"], "There is no absent.py in"),
        (["trainer.custom_trainer_module_path=other.py"], "expected a subclass of"),
        (
            ["trainer.custom_trainer_module_path=bare.py"],
            "does not implement ['begin', 'engine', 'tokenizer'], which BaseTrainer requires",
        ),
    ],
)
def test_a_trainer_that_is_not_loaded_is_told_why(changes, said, tmp_path):
    folder = copied(tmp_path / "mine")
    (folder / "broken.py").write_text("class MyCustomTrainer(:\n")
    (folder / "importing.py").write_text("import not_there\n")
    (folder / "dotted.py").write_text("from .absent import x\n")
    (folder / "other.py").write_text("class MyCustomTrainer: ...\n")
    (folder / "bare.py").write_text(
        "from trainers import BaseTrainer\n"
        "class MyCustomTrainer(BaseTrainer):\n"
        "    def train(self, trajectories): return {}\n"
    )
    result = CliRunner().invoke(app, ["plan", str(folder / "my_task.yaml"), *changes])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_example_runs_by_the_command_and_is_found_again(tmp_path):
    program = "from flows.cli.main import app; app()"
    command = [sys.executable, "-P", "-c", program, "run", str(EXAMPLES / "my_algorithm.yaml")]
    places = [f"settings.home={tmp_path}/home", f"settings.runs={tmp_path}/runs"]
    validated = ["language.validate_every=2", "language_task.num_validation=2"]
    given = [*SHORT, *validated, *places, "settings.tracking=false"]

    def run() -> list[str]:
        done = subprocess.run(
            [*command, *given, "--json"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        return [note for note in json.loads(done.stdout)["notes"] if note.startswith("Stages")]

    assert run() == ["Stages   6 computed, 0 cached"]
    stages = plan(resolve_file(str(EXAMPLES / "my_algorithm.yaml"), given))
    assert [stage.stage for stage in stages].count("validate") == 2
    assert all(stage.hit for stage in stages)
