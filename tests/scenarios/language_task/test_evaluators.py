"""Evaluators by name and from files: their parameters and results."""

import numpy as np
import pytest

from ratchet.errors import DataError, ParameterError, UnknownNameError
from ratchet.parameters.base import Reference
from ratchet.scenarios.language_task.evaluators import build_evaluator, checked
from ratchet.scenarios.language_task.task import Evaluation, Task

TASK = Task("one", "abc=", "cba")
CUSTOM = """
from ratchet.scenarios.language_task.task import Evaluation

def length(task, completion, messages, factor=1.0):
    return len(completion) * factor

class Bonus:
    def __init__(self, size=0.0):
        self.size = size
    def __call__(self, task, completion, messages):
        right = float(completion == task.answer)
        return Evaluation(right + self.size, {"right": right, "bonus": self.size})

class Silent:
    pass

number = 3
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(CUSTOM)
    return tmp_path


def reward(name, completion, base_dir=None, **given):
    evaluator = build_evaluator(Reference(name=name, **given), base_dir)
    return evaluator.evaluate(TASK, completion, ()).reward


@pytest.mark.parametrize(
    ("completion", "exact", "partial"),
    [
        ("cba", 1, 1),
        (" cba\n", 1, 1),
        ("cb", 0, 2 / 3),
        ("cbaa", 0, 3 / 4),
        ("cbb", 0, 2 / 3),
        ("", 0, 0),
        ("CBA", 0, 0),
        ("bac", 0, 0),
    ],
)
def test_exact_and_partial(completion, exact, partial):
    assert reward("exact", completion) == exact
    assert reward("partial", completion) == pytest.approx(partial)


def test_functions_and_classes_of_a_file_with_their_parameters(folder):
    assert reward("mine.py:length", "abcd", folder) == 4.0
    assert reward("mine.py:length", "abcd", folder, factor=0.5) == 2.0
    assert reward("mine.py:Bonus", "cba", folder, size=0.25) == 1.25


@pytest.mark.parametrize(
    ("reference", "what"),
    [
        ({"name": "exactly"}, "unknown 'exactly'.*exact"),
        ({"name": "mine.py:lenght"}, "no 'lenght' in mine.py.*length"),
        ({"name": "mine.py:number"}, "expected a function or class"),
        ({"name": "mine.py:Silent"}, "creates Silent, expected an Evaluator"),
        ({"name": "mine.py:Bonus", "weight": 1}, "does not accept"),
        ({"name": "exact", "weight": 1}, "does not accept"),
        ({"name": "missing.py:f"}, "no file"),
    ],
)
def test_what_is_no_evaluator_is_told(folder, reference, what):
    with pytest.raises((ParameterError, UnknownNameError), match=f"(?s){what}"):
        build_evaluator(Reference(**reference), folder)


@pytest.mark.parametrize("number", [np.float32(0.5), np.int64(1), np.bool_(True), True])
def test_numbers_of_arrays_are_numbers(number):
    found = checked(Evaluation(number, {"part": number}, {"metric": number}), "custom", TASK)
    numbers = (found.reward, found.parts["part"], found.metrics["metric"])
    assert numbers == (float(number),) * 3
    assert {type(each) for each in numbers} == {float}
    assert checked(number, "custom", TASK).reward == float(number)


@pytest.mark.parametrize("other", ["0.5", None, np.zeros(2), float("nan")])
def test_other_values_are_refused(other):
    for scored in (other, Evaluation(other), Evaluation(0.0, {"part": other})):
        with pytest.raises(DataError, match="evaluator custom, task 'one': got"):
            checked(scored, "custom", TASK)
