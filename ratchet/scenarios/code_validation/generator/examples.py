"""Examples: problems with a program that was tested, right ones and buggy ones.

Every label is what a run of the tests said. A buggy program is one that differs from the true one
by a small change and fails a test that the true one passes; a change that passes all tests is not
used, as it may be none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ratchet.errors import DataError
from ratchet.scenarios.code_validation.bug_writer import BugTask
from ratchet.scenarios.code_validation.generator import level0
from ratchet.scenarios.code_validation.generator.branches import branching_problem
from ratchet.scenarios.code_validation.generator.compositions import composed_problem
from ratchet.scenarios.code_validation.generator.loops import looping_problem
from ratchet.scenarios.code_validation.generator.problem import Problem
from ratchet.scenarios.code_validation.generator.sequences import sequence_problem
from ratchet.scenarios.code_validation.mutation import RULES, Mutant, mutants, normalize
from ratchet.scenarios.code_validation.parameters import UNKNOWN_BUG, bug_number
from ratchet.scenarios.sandbox.programs import (
    BUGGY,
    Program,
    ProgramResult,
    run_programs,
)
from ratchet.seeding import derive_seed, numpy_generator

if TYPE_CHECKING:
    from ratchet.scenarios.code_validation.bug_writer import BugWriter


@dataclass(frozen=True)
class Level:
    """Sampling of a level's problems, and the kinds of bugs in their programs."""

    draw: Callable[[np.random.Generator], Problem]
    bug_kinds: tuple[str, ...] = tuple(RULES)


LEVELS = (
    Level(level0.level0_program, level0.BUG_KINDS),
    Level(branching_problem),
    Level(looping_problem),
    Level(sequence_problem),
    Level(composed_problem),
)
"""Straight-line arithmetic, branches, loops, lists and texts, all of these together."""


MAX_STEPS = 60_000
"""Instructions of a generated program: no true one comes near, an endless loop always does."""

TIME_LIMIT = 0.5
"""CPU seconds of a generated program, which takes a thousandth of that."""

GROUP_SIZE = 32
MAX_DRAWS = 1000
MAX_MUTANTS = 16


@dataclass(frozen=True)
class Example:
    """One datapoint: ``y`` is 1 for a right program, 0 for a buggy one.

    ``origin`` names the program's source if it differs from the others'; ``bug`` is its kind of
    bug, a number of ``bug_kinds``, if known. ``program`` converts a source to the program that is
    run on the problem's own tests, if any.
    """

    question: str
    solution: str
    y: int
    level: int = -1
    origin: str = ""
    bug: int = UNKNOWN_BUG
    program: Callable[[str], Program] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ExamplePlan:
    """The requested examples.

    Parameters
    ----------
    purpose
        Keeps sets of the same seed apart, e.g. ``"train"``.
    levels
        In equal parts.
    accepts
        Whether a question belongs to this set: sets whose questions exclude each other are
        disjoint.
    """

    seed: int
    purpose: str
    count: int
    levels: tuple[int, ...]
    max_mutations: int = 1
    accepts: Callable[[str], bool] = field(default=lambda question: True)


@dataclass
class _Slot:
    """A place in the dataset, and what was found for it so far."""

    index: int
    level: int
    y: int
    draws: int = 0
    problem: Problem | None = None
    mutants: Iterator[Mutant] = field(default_factory=lambda: iter(()))
    tried: int = 0
    example: Example | None = None


def generate_examples(plan: ExamplePlan, writer: BugWriter | None = None) -> list[Example]:
    """Make examples: as many right as buggy ones in every level, no question twice.

    With ``writer`` a chat model writes the buggy programs, where it can.
    """
    slots = list(_slots(plan))
    questions: set[str] = set()
    while open_slots := [slot for slot in slots if slot.example is None]:
        _draw_problems(plan, open_slots, questions)
        if writer is not None:
            _take_written(plan, [slot for slot in open_slots if slot.example is None], writer)
            writer = None  # of each place it has had one problem
        _try_mutants([slot for slot in open_slots if slot.example is None])
    return [slot.example for slot in slots if slot.example is not None]


def question_share(question: str, salt: int) -> float:
    """Return a question's position in [0, 1), independent of the rest of the dataset."""
    digest = hashlib.sha256(f"{salt}\x1f{question}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _slots(plan: ExamplePlan) -> Iterator[_Slot]:
    """Pairs of one right and one buggy example of the same level, in random order."""
    rng = numpy_generator(plan.seed, "code_validation", purpose=f"labels/{plan.purpose}")
    for index in range(plan.count):
        if index % 2 == 0:
            first = int(rng.integers(2))
        pair = index // 2
        level = plan.levels[pair % len(plan.levels)]
        yield _Slot(index, level, first if index % 2 == 0 else 1 - first)


def _draw_problems(plan: ExamplePlan, slots: Sequence[_Slot], questions: set[str]) -> None:
    """Draw a problem for each slot without one, and test the true solutions."""
    new = [slot for slot in slots if slot.problem is None]
    for slot in new:
        _draw_problem(plan, slot, questions)
    problems = [slot.problem for slot in new if slot.problem is not None]
    programs = [Program(problem.solution, problem.tests, MAX_STEPS) for problem in problems]
    for slot, problem, result in zip(new, problems, _run(programs), strict=True):
        if not result.passed:
            raise DataError(
                f"code_validation: the true solution of a generated problem of level {slot.level}"
                f" ended with {result.status} {result.detail}, expected it to pass its tests. The"
                f" generator contradicts itself:\n{problem.question}\n{problem.solution}"
            )
        if slot.y == 1:
            slot.example = Example(problem.question, problem.solution, 1, slot.level)


def _draw_problem(plan: ExamplePlan, slot: _Slot, questions: set[str]) -> None:
    level = LEVELS[slot.level]
    base = derive_seed(plan.seed, "code_validation", slot.index, plan.purpose)
    for _ in range(MAX_DRAWS):
        slot.draws += 1
        rng = numpy_generator(base, "problem", slot.draws)
        problem = level.draw(rng)
        if problem.question in questions or not plan.accepts(problem.question):
            continue
        questions.add(problem.question)
        solution = normalize(problem.solution)
        slot.problem = Problem(problem.question, solution, problem.tests, slot.level)
        slot.tried = 0
        slot.mutants = mutants(
            solution, rng, kinds=level.bug_kinds, max_mutations=plan.max_mutations
        )
        return
    raise DataError(
        f"code_validation: {MAX_DRAWS} draws gave no new problem of level {slot.level} for the"
        f" {plan.purpose} set, which has {len(questions)} of {plan.count}. Ask for fewer, or for"
        " further levels."
    )


def _take_written(plan: ExamplePlan, slots: Sequence[_Slot], writer: BugWriter) -> None:
    """Take a model's programs for the slots' problems, in the form of all other programs."""
    tasks = {}
    for slot in slots:
        problem = slot.problem
        assert problem is not None  # drawn before
        name = f"{plan.purpose}/{slot.index}"
        program = partial(Program, tests=problem.tests, max_steps=MAX_STEPS)
        tasks[name] = BugTask(name, problem.question, problem.solution, program, True)
    written = writer.write(
        list(tasks.values()), lambda programs: run_programs(programs, time_limit=TIME_LIMIT)
    )
    for slot, (name, task) in zip(slots, tasks.items(), strict=True):
        if name in written:
            slot.example = Example(task.question, written[name], 0, slot.level, writer.origin)
    writer.report(plan.purpose, "are mutants")


def _try_mutants(slots: Sequence[_Slot]) -> None:
    """Test further mutants of each slot; take the first that fails, or give the problem up."""
    candidates: list[tuple[_Slot, Problem, Mutant]] = []
    for slot in slots:
        assert slot.problem is not None  # drawn before
        count = 1 if slot.tried == 0 else 4
        next_mutants = list(islice(slot.mutants, count))
        slot.tried += len(next_mutants)
        candidates += [(slot, slot.problem, mutant) for mutant in next_mutants]
        if not next_mutants or slot.tried > MAX_MUTANTS:
            slot.problem = None
    programs = [Program(each.source, problem.tests, MAX_STEPS) for _, problem, each in candidates]
    for (slot, problem, mutant), result in zip(candidates, _run(programs), strict=True):
        if slot.example is None and result.status in BUGGY:
            bug = bug_number(mutant.kinds)
            slot.example = Example(problem.question, mutant.source, 0, slot.level, bug=bug)


def _run(programs: Sequence[Program]) -> list[ProgramResult]:
    return run_programs(programs, time_limit=TIME_LIMIT, group_size=GROUP_SIZE)
