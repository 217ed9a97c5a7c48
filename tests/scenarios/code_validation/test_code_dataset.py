"""Generated datasets: balanced, tested, disjoint, and the same on every machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from ratchet.errors import DataError, ParameterError, UnknownNameError
from ratchet.parameters import HyperParameters
from ratchet.scenarios.code_validation.dataset import build_code_validation_datasets
from ratchet.scenarios.code_validation.generator import examples as examples_module
from ratchet.scenarios.code_validation.generator.examples import (
    LEVELS,
    ExamplePlan,
    Level,
    generate_examples,
)
from ratchet.scenarios.code_validation.generator.problem import Problem, call_tests
from ratchet.scenarios.code_validation.mutation import RULES, normalize
from ratchet.scenarios.code_validation.parameters import (
    BUG_KINDS,
    NO_BUG,
    SEVERAL_BUGS,
    bug_number,
)
from ratchet.scenarios.sandbox import programs as sandbox
from ratchet.scenarios.sandbox.programs import Program, run_programs

EVERY_LEVEL = {"levels": (0, 1, 2, 3, 4), "num_train": 20, "num_test": 10}


def parameters(dataset="generated", seed=1, **section):
    return HyperParameters(
        scenario="code_validation",
        trainer="pure_text_ei",
        dataset=dataset,
        seed=seed,
        code_validation=section,
    )


@pytest.fixture(scope="module")
def datasets():
    return build_code_validation_datasets(parameters(**EVERY_LEVEL))


def test_fields_balance_and_levels(datasets):
    train = datasets["train"]
    fields = ["bug", "datapoint_id", "level", "question", "solution", "source", "y"]
    assert train.fields == fields
    assert len(train) == 20
    assert len(datasets["test"]) == 10
    assert train["datapoint_id"].tolist() == list(range(20))
    for level in range(5):
        assert train["y"][train["level"] == level].tolist().count(1) == 2
    assert set(train["source"].tolist()) == {"generated"}
    assert len(set(train["question"].tolist())) == 20


def test_each_bug_has_the_number_of_what_was_changed(datasets):
    """A change of an operator does not change the numbers, and vice versa."""
    made = generate_examples(ExamplePlan(seed=3, purpose="train", count=40, levels=(0,)))
    kinds = {name: bug_number([name]) for name in ("arithmetic", "constant")}
    buggy = [example for example in made if example.y == 0]
    assert {example.bug for example in buggy} == set(kinds.values())
    for example in buggy:
        asked = re.findall(r"\d+", example.question)
        written = re.findall(r"[+*-] (\d+)", example.solution)
        assert (asked == written) == (example.bug == kinds["arithmetic"])
    train = datasets["train"]
    assert (train["bug"] == NO_BUG).tolist() == (train["y"] == 1).tolist()


def test_numbers_of_kinds_are_stored_and_must_stay():
    assert tuple(RULES) == BUG_KINDS
    assert [bug_number([kind]) for kind in ("arithmetic", "constant", "early_return")] == [1, 5, 18]
    assert bug_number(["index", "index"]) == 11
    assert bug_number(["index", "slice"]) == SEVERAL_BUGS
    with pytest.raises(UnknownNameError, match="unknown 'indx'"):
        bug_number(["indx"])


def test_train_and_test_share_no_question(monkeypatch):
    """Sixty of a hundred problems are requested."""

    def draw(rng):
        n = int(rng.integers(100))
        return Problem(f"{n}", f"def f():\n    return {n}", call_tests("f", [([], n)]), 0)

    monkeypatch.setattr(examples_module, "LEVELS", (Level(draw),))
    made = build_code_validation_datasets(parameters(num_train=50, num_test=10))
    train, test = (set(made[side]["question"].tolist()) for side in ("train", "test"))
    assert len(train) == 50
    assert len(test) == 10
    assert not train & test


def test_labels_can_not_be_told_from_order_or_style(datasets):
    train = datasets["train"]
    labels = train["y"].tolist()
    assert 0 < sum(labels[::2]) < 10
    for solution in train["solution"].tolist():
        assert solution == normalize(solution)


def test_every_label_is_what_the_tests_say():
    """The problems are drawn again, and their tests run on the programs of the dataset."""
    plan = ExamplePlan(seed=5, purpose="train", count=60, levels=(0, 1, 2, 3, 4))
    asked: dict[str, Problem] = {}
    real = examples_module._draw_problem

    def remember(plan, slot, questions):
        real(plan, slot, questions)
        asked[slot.problem.question] = slot.problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examples_module, "_draw_problem", remember)
        found = generate_examples(plan)
    programs = [Program(e.solution, asked[e.question].tests, 60_000) for e in found]
    passed = [result.passed for result in run_programs(programs)]
    assert passed == [bool(e.y) for e in found]
    assert sum(passed) == 30
    right = [asked[e.question].solution == e.solution for e in found]
    assert right == passed


def test_a_change_that_passes_all_tests_is_not_used(monkeypatch):
    """One of the two changes of this program has no effect."""

    def draw(rng):
        a = int(rng.integers(10**6))
        question, solution = f"Add 0 and {a}.", f"def f(x):\n    return x * 0 + {a}"
        return Problem(question, solution, call_tests("f", [([0], a)]), 0)

    monkeypatch.setattr(examples_module, "LEVELS", (Level(draw, ("constant",)),))
    found = generate_examples(ExamplePlan(seed=0, purpose="train", count=20, levels=(0,)))
    buggy = [e.solution for e in found if e.y == 0]
    assert len(buggy) == 10
    assert all("x * 0 +" in solution for solution in buggy)


def test_a_generator_that_contradicts_itself_is_found_out(monkeypatch):
    def draw(rng):
        return Problem(str(rng.random()), "def f():\n    return 1", call_tests("f", [([], 2)]), 0)

    monkeypatch.setattr(examples_module, "LEVELS", (Level(draw),))
    with pytest.raises(DataError, match=r"level 0 ended with wrong_answer.*contradicts itself"):
        generate_examples(ExamplePlan(seed=0, purpose="train", count=2, levels=(0,)))


def test_too_few_problems_are_an_error(monkeypatch):
    def draw(rng):
        n = int(rng.integers(3))
        return Problem(f"{n}", f"def f():\n    return {n}", call_tests("f", [([], n)]), 0)

    monkeypatch.setattr(examples_module, "LEVELS", (Level(draw),))
    with pytest.raises(DataError, match="Ask for fewer"):
        generate_examples(ExamplePlan(seed=0, purpose="train", count=10, levels=(0,)))


def test_data_depend_on_the_seed_alone_not_on_how_programs_are_run(datasets, monkeypatch):
    real = run_programs

    def otherwise(programs, **options):
        return real(programs, time_limit=3.0, group_size=3, workers=1)

    monkeypatch.setattr(examples_module, "run_programs", otherwise)
    again = build_code_validation_datasets(parameters(**EVERY_LEVEL))
    assert {name: d.hash for name, d in again.items()} == {
        name: d.hash for name, d in datasets.items()
    }
    other = build_code_validation_datasets(parameters(seed=2, **EVERY_LEVEL))
    assert other["train"].hash != datasets["train"].hash


def test_the_test_set_does_not_depend_on_the_training_set(datasets):
    more = build_code_validation_datasets(parameters(**{**EVERY_LEVEL, "num_train": 10}))
    assert more["test"] == datasets["test"]


def test_the_hash_is_the_same_in_another_process_with_another_hash_seed(datasets):
    code = (
        "from ratchet.parameters import HyperParameters\n"
        "from ratchet.scenarios.code_validation.dataset import build_code_validation_datasets\n"
        "h = HyperParameters(scenario='code_validation', trainer='pure_text_ei', seed=1,\n"
        f"    dataset='generated', code_validation={EVERY_LEVEL!r})\n"
        "import sys\n"
        "sys.stdout.write(build_code_validation_datasets(h)['train'].hash)\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert result.stdout == datasets["train"].hash


def test_level_0_has_the_bugs_that_leave_steps_beside_lines():
    found = generate_examples(ExamplePlan(seed=0, purpose="train", count=20, levels=(0,)))
    for example in found:
        steps = example.question.count("\n")
        assert len(example.solution.splitlines()) == steps + 2, example
    assert LEVELS[0].bug_kinds == ("arithmetic", "constant")


def test_several_mutations_may_be_asked_for():
    plan = ExamplePlan(seed=0, purpose="train", count=20, levels=(2,), max_mutations=3)
    assert [e.y for e in generate_examples(plan)].count(0) == 10


def test_unknown_names_say_what_there_is():
    with pytest.raises(ParameterError, match=r"got 'apps', expected 'generated', 'jsonl:PATH'"):
        build_code_validation_datasets(parameters("apps"))
    with pytest.raises(ParameterError, match="levels"):
        parameters(levels=(9,))
    with pytest.raises(ParameterError, match="none of them twice"):
        parameters(levels=(1, 1))


@pytest.mark.slow
def test_a_busy_machine_changes_no_label(datasets):
    """Six processes use all processors while the same data are generated."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    try:
        sandbox.sandbox_isolation.cache_clear()
        again = build_code_validation_datasets(parameters(**EVERY_LEVEL))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert again["train"] == datasets["train"]
    assert again["test"] == datasets["test"]
