"""Source is parsed although other threads confuse CPython's parser."""

from __future__ import annotations

import ast

import pytest

from ratchet.syntax import parse_python

TREE = ast.dump(ast.parse("x = 1"))


@pytest.mark.parametrize("failures", [0, 1, 19])
def test_a_confused_parser_is_called_again(monkeypatch, failures):
    parse, left = ast.parse, [failures]

    def confused(source):
        if left[0]:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=66, after=65)")
        return parse(source)

    monkeypatch.setattr(ast, "parse", confused)
    assert ast.dump(parse_python("x = 1")) == TREE


def test_other_errors_are_raised(monkeypatch):
    with pytest.raises(SyntaxError):
        parse_python("x =")
    calls = []

    def fail(source):
        calls.append(source)
        raise SystemError

    monkeypatch.setattr(ast, "parse", fail)
    with pytest.raises(SystemError):
        parse_python("x = 1")
    assert len(calls) == 20
