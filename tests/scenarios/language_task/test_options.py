"""Invalid options of environments and evaluators are refused before their construction."""

from __future__ import annotations

import pytest

from ratchet import HyperParameters
from ratchet.errors import ParameterError, UnknownNameError
from trainers.registry import trainer_class

OWN = """
from ratchet.scenarios.language_task.environments.base import SingleTurn

class Own(SingleTurn):
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
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def test_what_is_taken_is_taken_and_nothing_is_made(folder):
    check(folder, environment={"name": "python_tool", "time_limit": 1.0}, evaluator="partial")
    check(folder, environment={"name": "own.py:Own", "hint": "think"})
    check(folder, evaluator={"name": "own.py:close", "tolerance": 0.1})
    check(folder, evaluator={"name": "own.py:Judge", "strict": False})


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"environment": {"name": "python_tool", "timelimit": 1}}, r"Did you mean 'time_limit'"),
        ({"environment": {"name": "own.py:Own", "hints": 1}}, r"Did you mean 'hint'"),
        ({"evaluator": {"name": "own.py:close", "tolerence": 1}}, r"Did you mean 'tolerance'"),
        ({"evaluator": {"name": "own.py:close"}}, r"missing a required argument: 'tolerance'"),
        ({"evaluator": {"name": "own.py:Judge", "strikt": 1}}, r"Did you mean 'strict'"),
        ({"evaluator": {"name": "exact", "strict": 1}}, r"does not accept {'strict': 1}"),
    ],
)
def test_what_is_misspelled_is_refused_with_the_parameters(folder, section, says):
    with pytest.raises(ParameterError, match=rf"language_task\.\w+: .*{says}"):
        check(folder, **section)


def test_so_is_what_is_not_there(folder):
    with pytest.raises(UnknownNameError, match="python_tool"):
        check(folder, environment="pythn_tool")
