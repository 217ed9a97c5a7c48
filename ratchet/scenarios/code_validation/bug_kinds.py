"""Kinds of bugs as numbers: how datasets and tables of results tell them apart. Light."""

from __future__ import annotations

from collections.abc import Collection

from ratchet.errors import UnknownNameError, nearest

BUG_KINDS = (
    "arithmetic",
    "augmented",
    "comparison",
    "off_by_one_comparison",
    "constant",
    "logic",
    "negation",
    "swapped_operands",
    "wrong_variable",
    "range_bound",
    "index",
    "slice",
    "dropped_statement",
    "dropped_branch",
    "loop_control",
    "wrong_function",
    "wrong_method",
    "early_return",
)
"""The kinds that mutation knows. Their places are stored: new ones come last."""

NO_BUG, UNKNOWN_BUG, SEVERAL_BUGS = 0, -1, -2
BUG_LABELS = {
    NO_BUG: "no bug",
    UNKNOWN_BUG: "not known",
    SEVERAL_BUGS: "several kinds",
    **{place: name.replace("_", " ") for place, name in enumerate(BUG_KINDS, start=1)},
}
"""Number → what a kind is called."""


def bug_number(kinds: Collection[str]) -> int:
    """Return the number of a program's bugs of these kinds; those of several have one of its own.

    Raises
    ------
    UnknownNameError
        If there is no such kind.
    """
    for kind in kinds:
        if kind not in BUG_KINDS:
            raise UnknownNameError(f"kind of bug: unknown {kind!r}.{nearest(kind, BUG_KINDS)}")
    different = set(kinds)
    if not different:
        return NO_BUG
    return SEVERAL_BUGS if len(different) > 1 else 1 + BUG_KINDS.index(different.pop())
