"""Validation tasks, and options that are refused before environments and evaluators are built."""

from __future__ import annotations

import json

import pytest

from ratchet import ExperimentSettings, HyperParameters
from ratchet.errors import DataError, ParameterError, UnknownNameError
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.registry import build_scenario
from ratchet.store.fingerprint import code_fingerprint
from trainers.registry import trainer_class

CUSTOM = """
from ratchet.scenarios.language_task.environments.base import SingleTurn

class Custom(SingleTurn):
    def __init__(self, hint=""):
        raise RuntimeError("made")

def close(task, completion, messages, tolerance):
    return 1.0

class Judge:
    def __init__(self, strict=True):
        raise RuntimeError("made")
"""


def check(base_dir, **section):
    given = {"scenario": "language_task", "dataset": "reverse", "trainer": "grpo"}
    trainer_class(HyperParameters(**given, language_task=section), base_dir)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "custom.py").write_text(CUSTOM)
    return tmp_path


def test_what_is_taken_is_taken_and_nothing_is_made(folder):
    check(folder, environment={"name": "python_tool", "time_limit": 1.0}, evaluator="partial")
    check(folder, environment={"name": "custom.py:Custom", "hint": "think"})
    check(folder, evaluator={"name": "custom.py:close", "tolerance": 0.1})
    check(folder, evaluator={"name": "custom.py:Judge", "strict": False})


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"environment": {"name": "python_tool", "timelimit": 1}}, r"Did you mean 'time_limit'"),
        ({"environment": {"name": "custom.py:Custom", "hints": 1}}, r"Did you mean 'hint'"),
        ({"evaluator": {"name": "custom.py:close", "tolerence": 1}}, r"Did you mean 'tolerance'"),
        ({"evaluator": {"name": "custom.py:close"}}, r"missing a required argument: 'tolerance'"),
        ({"evaluator": {"name": "custom.py:Judge", "strikt": 1}}, r"Did you mean 'strict'"),
        ({"evaluator": {"name": "exact", "strict": 1}}, r"does not accept {'strict': 1}"),
    ],
)
def test_what_is_misspelled_is_refused_with_the_parameters(folder, section, says):
    with pytest.raises(ParameterError, match=rf"language_task\.\w+: .*{says}"):
        check(folder, **section)


def test_so_is_what_is_not_there(folder):
    with pytest.raises(UnknownNameError, match="python_tool"):
        check(folder, environment="pythn_tool")


GIVEN = {"scenario": "language_task", "dataset": "reverse", "trainer": "grpo"}


def parameters(dataset="reverse", validate_every=None, **section) -> HyperParameters:
    language = {"validate_every": validate_every}
    return HyperParameters(
        **{**GIVEN, "dataset": str(dataset)}, language_task=section, language=language
    )


def datasets(dataset="reverse", **section):
    return build_scenario_instance(parameters(dataset, **section), ExperimentSettings()).datasets


def prompts(dataset) -> set[str]:
    return {task.prompt_key for task in dataset}


def write(file, numbers) -> None:
    lines = [json.dumps({"prompt": f"{number}=", "answer": str(number)}) for number in numbers]
    file.write_text("\n".join(lines))


def test_it_takes_no_task_from_the_others():
    plain = datasets(num_train=40, num_test=20)
    made = datasets(num_train=40, num_test=20, num_validation=10)
    assert set(plain) == {"train", "test"}
    assert {name: len(tasks) for name, tasks in made.items()} == {
        "train": 40,
        "test": 20,
        "validation": 10,
    }
    assert (made["train"].hash, made["test"].hash) == (plain["train"].hash, plain["test"].hash)
    assert len(prompts(made["train"]) | prompts(made["validation"]) | prompts(made["test"])) == 70


def test_of_a_file_it_is_a_part_of_the_side_of_training(tmp_path):
    file = tmp_path / "mine.jsonl"
    write(file, range(60))
    made = datasets(file, num_validation=8)
    assert len(made["validation"]) == 8
    assert sum(map(len, made.values())) == 60
    assert not prompts(made["train"]) & prompts(made["validation"])
    with pytest.raises(DataError, match=r"num_validation: got 60, expected fewer than the \d+"):
        datasets(file, num_validation=60)


def test_of_a_folder_it_is_a_file_and_no_final_test(tmp_path):
    for number, name in enumerate(["train", "test", "validation", "harder"]):
        write(tmp_path / f"{name}.jsonl", range(10 * number, 10 * number + 10))
    made = datasets(tmp_path, num_test=4)
    assert [len(made[name]) for name in ("train", "test", "validation")] == [10, 4, 10]
    assert len(datasets(tmp_path, num_validation=3)["validation"]) == 3
    given = parameters(tmp_path, validate_every=2)
    assert build_scenario("language_task").test_sets(given) == ["test", "harder"]
    trainer_class(given)


def test_validation_without_tasks_for_it_is_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"got 2, but there are no tasks.*num_validation"):
        trainer_class(parameters(validate_every=2))
    for name in ("train", "test"):
        write(tmp_path / f"{name}.jsonl", range(3))
    with pytest.raises(ParameterError, match=r"validation\.jsonl"):
        trainer_class(parameters(tmp_path, validate_every=2))
    trainer_class(parameters(validate_every=2, num_validation=5))


def test_what_divides_tasks_counts_for_the_data():
    code = code_fingerprint(*build_scenario("language_task").data_code())
    assert "ratchet.scenarios.language_task.validation" in code.modules


def test_sets_that_nothing_would_test_on_are_refused(tmp_path):
    (tmp_path / "custom.py").write_text(
        "from ratchet.scenarios.language_task.sources.base import TaskSource\n"
        "from ratchet.scenarios.language_task.task import Task\n"
        "class Custom(TaskSource):\n"
        "    def build(self, seed, sizes):\n"
        "        names = ['train', 'test', 'hard']\n"
        "        return {name: [Task(name, name, 'x')] for name in names}\n"
    )
    with pytest.raises(DataError, match=r"has the sets \['hard'\], which no stage tests on"):
        build_scenario("language_task", tmp_path).build_datasets(parameters("custom.py:Custom"))


@pytest.mark.parametrize(
    ("dataset", "error", "says"),
    [
        ("revers", UnknownNameError, "Did you mean 'reverse'"),
        ("mine.jsonl", DataError, "dataset: there is no file .*mine.jsonl"),
        ("reverse", ParameterError, "no tasks to validate with"),
    ],
)
def test_a_misspelled_dataset_is_not_taken_for_one_without_validation(
    dataset, error, says, tmp_path
):
    with pytest.raises(error, match=says):
        trainer_class(parameters(dataset, validate_every=2), tmp_path)
