"""Mutation of programs: small changes of the syntax tree, similar to human mistakes.

A rule maps a node of the tree to possible replacements, which are new nodes or shared with the
tree, never modified in place. Tests of the program determine whether a mutant is wrong.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ratchet.syntax import parse_python

Replacement: TypeAlias = "ast.AST | list[ast.stmt]"
Names: TypeAlias = "Mapping[ast.AST, tuple[str, ...]]"

_ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Sub),
    ast.FloorDiv: (ast.Mod, ast.Mult),
    ast.Mod: (ast.FloorDiv,),
}
_COMPARISON: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.Gt, ast.GtE),
    ast.LtE: (ast.GtE, ast.Gt),
    ast.Gt: (ast.Lt, ast.LtE),
    ast.GtE: (ast.LtE, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OFF_BY_ONE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_FUNCTIONS = {
    "min": ("max",),
    "max": ("min",),
    "sum": ("len", "max"),
    "len": ("sum",),
    "any": ("all",),
    "all": ("any",),
    "sorted": ("list",),
    "reversed": ("list",),
    "abs": ("int",),
}
_METHODS = {
    "upper": ("lower",),
    "lower": ("upper",),
    "isupper": ("islower",),
    "islower": ("isupper",),
    "isdigit": ("isalpha",),
    "isalpha": ("isdigit",),
    "startswith": ("endswith",),
    "endswith": ("startswith",),
    "append": ("remove",),
    "find": ("rfind",),
    "strip": ("lstrip", "rstrip"),
}

Rule: TypeAlias = "Callable[[ast.AST, Names], Sequence[Replacement]]"
WRONG_VARIABLE = "wrong_variable"


def names_in(tree: ast.Module) -> Names:
    """Return each node's variables: those of its function, set further up."""
    names_by_node: dict[ast.AST, tuple[str, ...]] = {}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    scopes = [(set[str](), tree.body)]
    scopes += [({argument.arg for argument in f.args.args}, f.body) for f in functions]
    for known, body in scopes:
        for statement in body:
            _note_names(statement, known, names_by_node)
    return names_by_node


def _note_names(
    node: ast.AST, known: set[str], names_by_node: dict[ast.AST, tuple[str, ...]]
) -> None:
    """Walk in the order of execution; what a comprehension binds is known in it alone."""
    if isinstance(node, ast.FunctionDef):
        return
    names_by_node[node] = tuple(sorted(known))
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        known = known | {name for part in node.generators for name in _stored(part.target)}
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Assign | ast.AugAssign):
        children.reverse()  # the value comes before the targets
    if isinstance(node, ast.For):
        children = [node.iter, node.target, *node.body, *node.orelse]
    for child in children:
        _note_names(child, known, names_by_node)
    known.update(_stored(node))


def _stored(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store) else set()
    if isinstance(node, ast.Tuple):
        return {name for element in node.elts for name in _stored(element)}
    return set()


def other_arithmetic(node: ast.AST, names: Names) -> list[Replacement]:
    """``a + b`` → ``a - b``."""
    if not isinstance(node, ast.BinOp):
        return []
    return [ast.BinOp(node.left, op(), node.right) for op in _ARITHMETIC.get(type(node.op), ())]


def other_augmented(node: ast.AST, names: Names) -> list[Replacement]:
    """``a += b`` → ``a -= b`` or ``a = b``."""
    if not isinstance(node, ast.AugAssign):
        return []
    others = _ARITHMETIC.get(type(node.op), ())
    changed: list[Replacement] = [ast.AugAssign(node.target, op(), node.value) for op in others]
    return [*changed, ast.Assign([node.target], node.value)]


def other_comparison(node: ast.AST, names: Names) -> list[Replacement]:
    """``a < b`` → ``a > b``."""
    if not isinstance(node, ast.Compare):
        return []
    return [
        _with_operator(node, i, other())
        for i, op in enumerate(node.ops)
        for other in _COMPARISON.get(type(op), ())
    ]


def off_by_one_comparison(node: ast.AST, names: Names) -> list[Replacement]:
    """``a < b`` → ``a <= b``."""
    if not isinstance(node, ast.Compare):
        return []
    return [
        _with_operator(node, i, _OFF_BY_ONE[type(op)]())
        for i, op in enumerate(node.ops)
        if type(op) in _OFF_BY_ONE
    ]


def _with_operator(node: ast.Compare, index: int, op: ast.cmpop) -> ast.Compare:
    return ast.Compare(node.left, [*node.ops[:index], op, *node.ops[index + 1 :]], node.comparators)


def other_constant(node: ast.AST, names: Names) -> list[Replacement]:
    """``3`` → ``2`` or ``4``; a text loses its last character."""
    if not isinstance(node, ast.Constant):
        return []
    value = node.value
    if isinstance(value, bool):
        return [ast.Constant(not value)]
    if isinstance(value, int):
        return [ast.Constant(other) for other in (value - 1, value + 1) if other >= 0]
    if isinstance(value, str) and value:
        return [ast.Constant(value[:-1])]
    return []


def other_logic(node: ast.AST, names: Names) -> list[Replacement]:
    """``a and b`` → ``a or b`` or ``a``."""
    if not isinstance(node, ast.BoolOp):
        return []
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return [ast.BoolOp(other, node.values), *node.values]


def negated_condition(node: ast.AST, names: Names) -> list[Replacement]:
    """``if a:`` → ``if not a:``, and back."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    if isinstance(node, ast.If):
        return [ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)]
    return []


def swapped_operands(node: ast.AST, names: Names) -> list[Replacement]:
    """``a - b`` → ``b - a``."""
    swappable = (ast.Sub, ast.FloorDiv, ast.Mod, ast.Add)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, swappable):
        return []
    return [ast.BinOp(node.right, node.op, node.left)]


def wrong_variable(node: ast.AST, names: Names) -> list[Replacement]:
    """Another variable of the program."""
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return []
    known = names.get(node, ())
    if node.id not in known:
        return []
    return [ast.Name(name, ast.Load()) for name in known if name != node.id]


def shifted_range(node: ast.AST, names: Names) -> list[Replacement]:
    """``range(n)`` → ``range(1, n)``, ``range(n - 1)``, ``range(n + 1)``."""
    if not isinstance(node, ast.Call) or not node.args:
        return []
    if not isinstance(node.func, ast.Name) or node.func.id != "range":
        return []
    stop = 0 if len(node.args) == 1 else 1
    changed: list[Replacement] = [
        _with_argument(node, stop, _plus(node.args[stop], shift)) for shift in (-1, 1)
    ]
    if stop == 1:
        return [*changed, _with_argument(node, 0, _plus(node.args[0], 1))]
    return [*changed, ast.Call(node.func, [ast.Constant(1), *node.args], [])]


def shifted_index(node: ast.AST, names: Names) -> list[Replacement]:
    """``a[i]`` → ``a[i + 1]``, ``a[i - 1]``."""
    if not isinstance(node, ast.Subscript) or isinstance(node.slice, ast.Slice | ast.Tuple):
        return []
    index = node.slice
    if isinstance(index, ast.Constant) and not isinstance(index.value, int):
        return []
    return [ast.Subscript(node.value, _plus(index, shift), node.ctx) for shift in (-1, 1)]


def shifted_slice(node: ast.AST, names: Names) -> list[Replacement]:
    """``a[n:]`` → ``a[n + 1:]``, ``a[:n]``; a step is lost."""
    if not isinstance(node, ast.Slice):
        return []
    changed: list[Replacement] = []
    if node.lower is not None:
        changed.append(ast.Slice(_plus(node.lower, 1), node.upper, node.step))
    if node.upper is not None:
        changed.append(ast.Slice(node.lower, _plus(node.upper, -1), node.step))
    if node.step is not None:
        changed.append(ast.Slice(node.lower, node.upper, None))
    elif (node.lower is None) != (node.upper is None):
        changed.append(ast.Slice(node.upper, node.lower, None))
    return changed


def dropped_statement(node: ast.AST, names: Names) -> list[Replacement]:
    """An assignment or a call is forgotten."""
    return [[]] if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr) else []


def dropped_branch(node: ast.AST, names: Names) -> list[Replacement]:
    """An ``if`` without its ``else``, without its condition, or without both."""
    if not isinstance(node, ast.If):
        return []
    changed: list[Replacement] = [list(node.body), list(node.orelse)]
    if node.orelse:
        changed.append(ast.If(node.test, node.body, []))
    return changed


def other_loop_control(node: ast.AST, names: Names) -> list[Replacement]:
    """``break`` and ``continue`` in the other's place, or forgotten."""
    if isinstance(node, ast.Break):
        return [ast.Continue(), ast.Pass()]
    if isinstance(node, ast.Continue):
        return [ast.Break(), ast.Pass()]
    return []


def wrong_function(node: ast.AST, names: Names) -> list[Replacement]:
    """``min(a)`` → ``max(a)``; ``sorted(a, reverse=True)`` → ``sorted(a)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return []
    changed: list[Replacement] = []
    if not node.keywords:
        others = _FUNCTIONS.get(node.func.id, ())
        changed = [ast.Call(ast.Name(other, ast.Load()), node.args, []) for other in others]
    elif node.args:
        changed = [ast.Call(node.func, node.args, [])]
    return changed


def wrong_method(node: ast.AST, names: Names) -> list[Replacement]:
    """``a.upper()`` → ``a.lower()``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return []
    function = node.func
    return [
        ast.Call(ast.Attribute(function.value, other, ast.Load()), node.args, node.keywords)
        for other in _METHODS.get(function.attr, ())
    ]


def early_return(node: ast.AST, names: Names) -> list[Replacement]:
    """Move the return after a loop into it: one level too deep."""
    if not isinstance(node, ast.FunctionDef) or len(node.body) < 2:
        return []
    loop, last = node.body[-2:]
    if not isinstance(loop, ast.For | ast.While) or not isinstance(last, ast.Return):
        return []
    changed = parse_python(ast.unparse(node)).body[0]
    assert isinstance(changed, ast.FunctionDef)  # of the same form
    inner = changed.body[-2]
    assert isinstance(inner, ast.For | ast.While)
    inner.body.append(changed.body.pop())
    return [changed]


def _with_argument(node: ast.Call, index: int, argument: ast.expr) -> ast.Call:
    return ast.Call(
        node.func, [*node.args[:index], argument, *node.args[index + 1 :]], node.keywords
    )


def _plus(node: ast.expr, shift: int) -> ast.expr:
    """Add a number, simplifying ``n + 1 - 1`` and ``3 + 1``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value + shift >= 0:
        return ast.Constant(node.value + shift)
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
        sign = {ast.Add: 1, ast.Sub: -1}.get(type(node.op), 0)
        value = node.right.value
        if sign and isinstance(value, int):
            return _plus_number(node.left, sign * value + shift)
    return _plus_number(node, shift)


def _plus_number(node: ast.expr, number: int) -> ast.expr:
    if number == 0:
        return node
    op = ast.Add() if number > 0 else ast.Sub()
    return ast.BinOp(node, op, ast.Constant(abs(number)))


RULES: dict[str, Rule] = {
    "arithmetic": other_arithmetic,
    "augmented": other_augmented,
    "comparison": other_comparison,
    "off_by_one_comparison": off_by_one_comparison,
    "constant": other_constant,
    "logic": other_logic,
    "negation": negated_condition,
    "swapped_operands": swapped_operands,
    WRONG_VARIABLE: wrong_variable,
    "range_bound": shifted_range,
    "index": shifted_index,
    "slice": shifted_slice,
    "dropped_statement": dropped_statement,
    "dropped_branch": dropped_branch,
    "loop_control": other_loop_control,
    "wrong_function": wrong_function,
    "wrong_method": wrong_method,
    "early_return": early_return,
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
    """A changed program, and the kinds of its changes."""

    source: str
    kinds: tuple[str, ...]


def normalize(source: str) -> str:
    """Normalise a program, so that its style does not reveal its origin."""
    return ast.unparse(parse_python(source))


def possible_mutations(source: str, kinds: Sequence[str] = tuple(RULES)) -> list[Mutation]:
    """List all changes of some kinds that the rules know for a program."""
    tree = parse_python(source)
    names = names_in(tree) if WRONG_VARIABLE in kinds else {}
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
    names = names_in(tree) if mutation.kind == WRONG_VARIABLE else {}
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
        changed, applied_kinds = apply_mutation(source, first), [first.kind]
        for _ in range(int(rng.integers(max_mutations))):
            further = next(random_mutations(changed, rng, kinds), None)
            if further is not None:
                changed = apply_mutation(changed, further)
                applied_kinds.append(further.kind)
        if changed not in seen:
            seen.add(changed)
            yield Mutant(changed, tuple(applied_kinds))


class _Replace(ast.NodeTransformer):
    """Replaces a node by another node or several statements."""

    def __init__(self, target: ast.AST, replacement: Replacement) -> None:
        self.target = target
        self.replacement = replacement

    def visit(self, node: ast.AST) -> Replacement:
        if node is self.target:
            return self.replacement
        self.generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list) and not body and not isinstance(node, ast.Module):
            body.append(ast.Pass())
        return node
