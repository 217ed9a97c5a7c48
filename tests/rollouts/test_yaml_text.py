"""YAML text is unchanged by a round trip, and contains lines as blocks."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.errors import DataError
from ratchet.rollouts.transcripts import to_yaml

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LINES = st.text(
    st.sampled_from("ab \t\n\r:#-|>'\"{}[]&*!%@`,?\\\x85\u2028\ufeff\x7f\0é😀"), max_size=12
)
WORDS = st.sampled_from(
    ["yes", "No", "null", "~", "1", "1.5", "1e5", "0x1f", "-", "2020-01-01", "="]
)
SCALARS = (
    ANY_TEXT
    | LINES
    | WORDS
    | st.integers()
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.none()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT | LINES | WORDS, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(value=st.lists(VALUES, max_size=3) | st.dictionaries(LINES, VALUES, max_size=3))
@example(value=[{"a": "x\n  y \n\n z"}, [["a\nb\n"], {}], [[]], {"k": [{"l": [[1e-7, 1e22]]}]}])
@example(value={"a": {"b": "x\n\ty"}, "c": "--- \n...\n# no comment\n"})
def test_any_plain_value_reads_back(value):
    assert yaml.safe_load(to_yaml(value)) == value


def test_text_of_several_lines_is_shown_as_such():
    value = [{"agent": "prover", "text": "one: 1 \n  two\n\nthree\n", "rewards": {"a b": 1.0}}]
    assert to_yaml(value) == (
        "- agent: prover\n"
        "  text: |\n"
        "    one: 1 \n"
        "      two\n"
        "\n"
        "    three\n"
        "  rewards:\n"
        '    "a b": 1.0\n'
    )


def test_floats_that_are_no_numbers_are_kept():
    read = yaml.safe_load(to_yaml([math.inf, -math.inf, math.nan]))
    assert read[:2] == [math.inf, -math.inf]
    assert math.isnan(read[2])


def test_other_values_are_refused():
    with pytest.raises(DataError, match="of type object, expected plain values"):
        to_yaml([{"a": object()}])
