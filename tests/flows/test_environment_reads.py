"""Reads of environment variables are found in the syntax of a source."""

from __future__ import annotations

import pytest

from flows.runs.unseen_inputs import environment_reads


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("os.environ['A']", ["A"]),
        ("x = os.environ.get('A', '1')", ["A"]),
        ("x = os.getenv('A')", ["A"]),
        ("environ['A']", ["A"]),
        ("x = read('A')", ["A"]),
        ("system.environ['A']", ["A"]),
        ("'A' in os.environ", ["A"]),
        ("x = os.environ.setdefault('A', '1')", ["A"]),
        ("os.environ[name]", [""]),
        ("dict(os.environ)", [""]),
        ("values = os.environ", [""]),
        ("x = os.getenv('A') + os.getenv('B')", ["A", "B"]),
        ("os.environ['A'] = '1'", []),
        ("os.environ |= {'A': '1'}", []),
        ("del os.environ['A']", []),
        ("os.environ.setdefault('A', '1')", []),
        ("os.environ['OPENAI_API_KEY']", []),
        ("os.path.join('A')", []),
        ("other.environ['A']", []),
        ("'os.environ'", []),
    ],
)
def test_a_line(line, names):
    source = (
        "import os\nimport os as system\nfrom os import environ, getenv as read\n"
        f"def function(name, other):\n    {line}\n"
    )
    reads = environment_reads(source.encode())
    assert [each.name for each in reads] == names
    assert {each.line for each in reads} <= {5}


def test_a_source_without_the_module_reads_none():
    assert environment_reads(b"environ = {}\nenviron['A']\ngetenv = print\ngetenv('A')\n") == []
