"""Bugs: small changes of a program's syntax tree, such as people make.

Whether a changed program is wrong is not said here; its tests say that.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ratchet.scenarios.code_validation import mutation_rules as rules
from ratchet.syntax import parse_python

Rule: TypeAlias = "Callable[[ast.AST, rules.Names], Sequence[rules.Replacement]]"

WRONG_VARIABLE = "wrong_variable"

RULES: dict[str, Rule] = {
    "arithmetic": rules.other_arithmetic,
    "augmented": rules.other_augmented,
    "comparison": rules.other_comparison,
    "off_by_one_comparison": rules.off_by_one_comparison,
    "constant": rules.other_constant,
    "logic": rules.other_logic,
    "negation": rules.negated_condition,
    "swapped_operands": rules.swapped_operands,
    WRONG_VARIABLE: rules.wrong_variable,
    "range_bound": rules.shifted_range,
    "index": rules.shifted_index,
    "slice": rules.shifted_slice,
    "dropped_statement": rules.dropped_statement,
    "dropped_branch": rules.dropped_branch,
    "loop_control": rules.other_loop_control,
    "wrong_function": rules.wrong_function,
    "wrong_method": rules.wrong_method,
    "early_return": rules.early_return,
}
"""The kinds of bugs by name, in the order of ``bug_kinds.BUG_KINDS``."""


@dataclass(frozen=True)
class Mutation:
    """One possible change: its kind, the node (in the order of ``ast.walk``), which of several."""

    kind: str
    node: int
    variant: int


@dataclass(frozen=True)
class Mutant:
    """A changed program, and which kinds of changes were made."""

    source: str
    kinds: tuple[str, ...]


def normalize(source: str) -> str:
    """Write a program as all programs of a dataset are written, so that style tells nothing."""
    return ast.unparse(parse_python(source))


def possible_mutations(source: str, kinds: Sequence[str] = tuple(RULES)) -> list[Mutation]:
    """List all changes of some kinds that the rules know for a program."""
    tree = parse_python(source)
    names = rules.names_in(tree) if WRONG_VARIABLE in kinds else {}
    return [
        Mutation(kind, index, variant)
        for index, node in enumerate(ast.walk(tree))
        for kind in kinds
        for variant in range(len(RULES[kind](node, names)))
    ]


def apply_mutation(source: str, mutation: Mutation) -> str:
    """Return the changed program, normalised."""
    tree = parse_python(source)
    target = list(ast.walk(tree))[mutation.node]
    names = rules.names_in(tree) if mutation.kind == WRONG_VARIABLE else {}
    replacement = RULES[mutation.kind](target, names)[mutation.variant]
    _Replace(target, replacement).visit(tree)
    return ast.unparse(ast.fix_missing_locations(tree))


def random_mutations(
    source: str, rng: np.random.Generator, kinds: Sequence[str] = tuple(RULES)
) -> Iterator[Mutation]:
    """Return all possible changes in random order, every kind as likely as every other."""
    by_kind: dict[str, list[Mutation]] = {}
    for mutation in possible_mutations(source, kinds):
        by_kind.setdefault(mutation.kind, []).append(mutation)
    while by_kind:
        left = by_kind[list(by_kind)[int(rng.integers(len(by_kind)))]]
        mutation = left.pop(int(rng.integers(len(left))))
        if not left:
            del by_kind[mutation.kind]
        yield mutation


def mutants(
    source: str,
    rng: np.random.Generator,
    *,
    kinds: Sequence[str] = tuple(RULES),
    max_mutations: int = 1,
) -> Iterator[Mutant]:
    """Return different programs in random order, each with one to ``max_mutations`` bugs."""
    seen = {normalize(source)}
    for first in random_mutations(source, rng, kinds):
        changed, made = apply_mutation(source, first), [first.kind]
        for _ in range(int(rng.integers(max_mutations))):
            further = next(random_mutations(changed, rng, kinds), None)
            if further is not None:
                changed = apply_mutation(changed, further)
                made.append(further.kind)
        if changed not in seen:
            seen.add(changed)
            yield Mutant(changed, tuple(made))


class _Replace(ast.NodeTransformer):
    """Puts another node, or several statements, in the place of one."""

    def __init__(self, target: ast.AST, replacement: rules.Replacement) -> None:
        self.target = target
        self.replacement = replacement

    def visit(self, node: ast.AST) -> rules.Replacement:
        if node is self.target:
            return self.replacement
        self.generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list) and not body and not isinstance(node, ast.Module):
            body.append(ast.Pass())
        return node
