"""The generator's levels of difficulty, by number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ratchet.scenarios.code_validation.generator import level0
from ratchet.scenarios.code_validation.generator.branches import branching_problem
from ratchet.scenarios.code_validation.generator.compositions import composed_problem
from ratchet.scenarios.code_validation.generator.loops import looping_problem
from ratchet.scenarios.code_validation.generator.problem import Problem
from ratchet.scenarios.code_validation.generator.sequences import sequence_problem
from ratchet.scenarios.code_validation.mutation import RULES


@dataclass(frozen=True)
class Level:
    """How a level's problems are drawn, and which kinds of bugs their programs get."""

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
