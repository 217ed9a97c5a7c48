"""The generator: solutions do what the statements' arithmetic says, at every level."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json

import numpy as np
import pytest

from ratchet.scenarios.code_validation.generator.examples import LEVELS
from ratchet.scenarios.code_validation.generator.phrases import draw_condition, draw_number
from ratchet.scenarios.code_validation.parameters import MAX_LEVEL
from ratchet.scenarios.sandbox.programs import Program, run_programs

DIGESTS = (
    "de6108f688e45824",
    "5a35a4e5a7cb3f86",
    "327f1ca5fc3a213d",
    "aa76564be44ed30d",
    "fcbcac61d10d638f",
)


def draw(level, count):
    return [LEVELS[level].draw(np.random.default_rng([level, i])) for i in range(count)]


def test_parameters_know_how_many_levels_there_are():
    assert len(LEVELS) == MAX_LEVEL + 1


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_true_solutions_pass_tests_that_were_not_made_with_them(level):
    problems = draw(level, 150)
    programs = [Program(p.solution, p.tests, max_steps=60_000) for p in problems]
    for problem, result in zip(problems, run_programs(programs, group_size=32), strict=True):
        assert result.passed, (problem.question, problem.solution, result)


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_problems_are_many_and_repeatable(level):
    problems = draw(level, 150)
    assert problems == draw(level, 150)
    assert len({p.question for p in problems}) > 130
    assert all(p.level == level for p in problems)
    assert all(len(p.tests.cases) >= 5 for p in problems)


@pytest.mark.parametrize(("level", "digest"), enumerate(DIGESTS))
def test_problems_stay_the_same(level, digest):
    """Otherwise stored datasets are rebuilt, and results are no longer comparable."""
    content = [dataclasses.asdict(problem) for problem in draw(level, 60)]
    text = json.dumps(content, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("level", range(1, len(LEVELS)))
def test_levels_have_what_their_names_say(level):
    wanted = (ast.If, ast.For | ast.While, ast.For | ast.ListComp, ast.FunctionDef)[level - 1]
    for problem in draw(level, 40):
        nodes = list(ast.walk(ast.parse(problem.solution)))
        functions = sum(isinstance(node, ast.FunctionDef) for node in nodes)
        assert functions == (2 if level == 4 else 1)
        if level in (1, 2):
            assert any(isinstance(node, wanted) for node in nodes), problem.solution


def test_phrases_say_in_python_what_they_compute():
    """In this process: the code is the generator's, from a fixed list of templates."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        for phrase in (draw_number(rng), draw_condition(rng)):
            code = compile(phrase.write("x"), "<phrase>", "eval")
            for x in range(-15, 25):
                assert eval(code, {"x": x}) == phrase.apply(x), phrase.code
