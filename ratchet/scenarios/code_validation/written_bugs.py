"""Buggy programs for problems that were read, where a chat model writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.errors import DataError
from ratchet.scenarios.code_validation.bug_writer import BugTask
from ratchet.scenarios.code_validation.generator.examples import Example
from ratchet.seeding import numpy_generator

if TYPE_CHECKING:
    from ratchet.scenarios.code_validation.bug_writer import BugWriter, RunPrograms


def add_written_bugs(
    examples: Sequence[Example],
    side: str,
    writer: BugWriter,
    run: RunPrograms,
    *,
    seed: int,
    most: int | None = None,
) -> list[Example]:
    """Add a buggy program to each problem that has a tested right one and no buggy one.

    Parameters
    ----------
    examples
        Of the set named ``side``.
    most
        So many at most, of problems that are drawn by the seed; None for all.

    Raises
    ------
    DataError
        If there is no such problem.
    """
    buggy = {example.question for example in examples if example.y == 0}
    right: dict[str, Example] = {}
    for example in examples:
        if example.y == 1 and example.program is not None and example.question not in buggy:
            right.setdefault(example.question, example)
    if not right and not buggy:
        raise DataError(
            f"bug_generator: none of the {len(examples)} programs of the {side} set has tests that"
            " it passes, so that no bug in it could be told. Give problems with tests (of APPS:"
            " code_validation.run_own_tests=true), or leave bug_generator.model_name out."
        )
    rng = numpy_generator(seed, "code_validation", purpose=f"bugs/{side}")
    chosen = list(right.values())
    chosen = [chosen[int(i)] for i in rng.permutation(len(chosen))[:most]]
    tasks = {
        f"{side}/{number}": BugTask(f"{side}/{number}", each.question, each.solution, each.program)
        for number, each in enumerate(chosen)
        if each.program is not None
    }
    written = writer.write(list(tasks.values()), run)
    writer.report(side, "have none")
    added = [
        Example(example.question, written[name], 0, example.level, writer.origin)
        for name, example in zip(tasks, chosen, strict=True)
        if name in written
    ]
    return [*examples, *added]
