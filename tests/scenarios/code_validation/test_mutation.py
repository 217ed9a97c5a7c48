"""Bugs: the results of each rule, in random but repeatable order."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from ratchet.scenarios.code_validation.mutation import (
    RULES,
    apply_mutation,
    mutants,
    normalize,
    possible_mutations,
    random_mutations,
)

EXAMPLES = {
    "arithmetic": ("x = a + b", {"x = a - b", "x = a * b"}),
    "augmented": ("x += y", {"x -= y", "x *= y", "x = y"}),
    "comparison": ("x = a < b", {"x = a > b", "x = a >= b"}),
    "off_by_one_comparison": ("x = 1 <= a < 3", {"x = 1 < a < 3", "x = 1 <= a <= 3"}),
    "constant": ("x = 3", {"x = 2", "x = 4"}),
    "logic": ("x = a and b", {"x = a or b", "x = a", "x = b"}),
    "negation": ("if a:\n    b()", {"if not a:\n    b()"}),
    "swapped_operands": ("x = a - b", {"x = b - a"}),
    "wrong_variable": ("def f(a, b):\n    return a", {"def f(a, b):\n    return b"}),
    "range_bound": (
        "for i in range(n + 1):\n    pass",
        {
            "for i in range(n):\n    pass",
            "for i in range(n + 2):\n    pass",
            "for i in range(1, n + 1):\n    pass",
        },
    ),
    "index": ("x = a[i - 1]", {"x = a[i - 2]", "x = a[i]"}),
    "slice": ("x = a[2:]", {"x = a[3:]", "x = a[:2]"}),
    "dropped_statement": ("x = 1\ny = 2", {"x = 1", "y = 2"}),
    "dropped_branch": (
        "if a:\n    b()\nelse:\n    c()",
        {"b()", "c()", "if a:\n    b()"},
    ),
    "loop_control": (
        "for i in a:\n    break",
        {"for i in a:\n    continue", "for i in a:\n    pass"},
    ),
    "wrong_function": ("x = min(a, b)", {"x = max(a, b)"}),
    "wrong_method": ("x = s.upper()", {"x = s.lower()"}),
    "early_return": (
        "def f(a):\n    for i in a:\n        g()\n    return a",
        {"def f(a):\n    for i in a:\n        g()\n        return a"},
    ),
}


def test_every_rule_has_an_example():
    assert EXAMPLES.keys() == RULES.keys()


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_makes_what_people_write_by_mistake(kind):
    source, expected = EXAMPLES[kind]
    mutations = possible_mutations(source, [kind])
    assert {apply_mutation(source, mutation) for mutation in mutations} == expected


def test_an_empty_body_stays_a_program():
    source = "def f(x):\n    if x:\n        x = 1\n    return x"
    dropped = {apply_mutation(source, m) for m in possible_mutations(source, ["dropped_statement"])}
    assert dropped == {"def f(x):\n    if x:\n        pass\n    return x"}


def test_a_wrong_variable_is_one_that_is_known_there():
    source = "def g(p):\n    return p\n\ndef f(a):\n    b = a\n    c = [x for x in b]\n    return c"
    made = [apply_mutation(source, m) for m in possible_mutations(source, ["wrong_variable"])]
    assert not any("return p" not in program for program in made)  # g has one variable only
    assert any("[a for x in b]" in program for program in made)
    assert any("return b" in program for program in made)
    assert not any("return x" in program or "b = c" in program for program in made)


def test_all_mutants_are_programs_and_none_is_the_original():
    source = "def f(a, n):\n" + "".join(
        f"    {line}\n" for line in ("t = 0", "for i in range(n):", "    t += a[i] * 2", "return t")
    )
    mutated = list(mutants(source, np.random.default_rng(0), max_mutations=2))
    made = [mutant.source for mutant in mutated]
    assert {len(mutant.kinds) for mutant in mutated} == {1, 2}
    assert len(set(made)) == len(made) > 20
    assert normalize(source) not in made
    for program in made:
        ast.parse(program)


def test_the_order_is_random_but_repeatable_and_kinds_are_even():
    source = "def f(a, b, c, d):\n    if a < b:\n        return c + d + a + b\n    return 0"
    orders = [
        [m.kind for m in random_mutations(source, np.random.default_rng(seed))]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    firsts = [next(random_mutations(source, np.random.default_rng(s))).kind for s in range(400)]
    share = firsts.count("off_by_one_comparison") / 400
    kinds = len(set(orders[0]))
    assert abs(share - 1 / kinds) < 0.06


def test_kinds_can_be_chosen():
    found = possible_mutations("x = 1 + a", ["constant"])
    assert {mutation.kind for mutation in found} == {"constant"}
