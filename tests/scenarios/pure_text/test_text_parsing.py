"""Parsing of replies: decisions, channels and invalid replies."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.parameters.protocols import DecisionScaleName
from ratchet.protocols.decision_scales import DECISION_SCALES
from ratchet.scenarios.pure_text.parsing import NO_DECISION, parse_completion, read_degree

ONE = {"main": "Question:"}
TWO = {"prover0_channel": "To Expert 1:", "prover1_channel": "To Expert 2:"}


@pytest.mark.parametrize("word", ["accept", "ACCEPT", "Accept"])
@pytest.mark.parametrize(
    "form",
    [
        "Decision: {}",
        "decision:{}",
        "  DECISION :   {}  \n",
        "Decision: {}.",
        "**Decision: {}**",
        "**Decision:** {}",
        "*Decision*: __{}__.",
        "Decision: **{}.**",
        "`Decision: {}`",
        "Decision:\n{}",
    ],
)
def test_a_decision_is_read_whatever_its_case_spaces_full_stop_and_emphasis(form, word):
    for headers in ({}, ONE, TWO):
        parsed = parse_completion(form.format(word), headers, may_decide=True)
        assert (parsed.valid, parsed.decision, dict(parsed.messages)) == (True, 1, {})
        rejected = parse_completion(form.format("reject"), headers, may_decide=True)
        assert (rejected.valid, rejected.decision) == (True, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "accept",
        "Decision",
        "Decision: maybe",
        "Decision: accepted",
        "Decision accept",
        "Decision: accept!",
        "Decision: accept..",
        "Decision: accept or reject",
        "I think: Decision: accept",
        "My decision: accept",
        "Decision: accept\nDecision: reject",
        "Decision: accept\nbecause it is right",
    ],
)
def test_anything_else_is_no_decision(text):
    parsed = parse_completion(text, {}, may_decide=True)
    assert (parsed.valid, parsed.decision) == (False, 2)


def test_a_decision_before_it_counts_is_invalid_and_never_read():
    assert not parse_completion("Decision: accept", ONE, may_decide=False).valid
    parsed = parse_completion("Question: why?\nDecision: accept", ONE, may_decide=False)
    assert (parsed.valid, parsed.decision) == (True, 2)


def test_a_decision_beside_a_message_is_invalid_where_one_may_be_made():
    assert not parse_completion("Question: why?\nDecision: accept", ONE, may_decide=True).valid
    # In a sentence it is only talk.
    talk = parse_completion("Question: is your decision: accept?", ONE, may_decide=True)
    assert dict(talk.messages) == {"main": "is your decision: accept?"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Question: what?", "what?"),
        ("question :what?", "what?"),
        ("  QUESTION:\n\nwhat?\nand why?\n", "what?\nand why?"),
        ("**Question:** what?", "what?"),
        ("**Question**: what?", "what?"),
        ("## Question: *what*?", "*what*?"),
        ("> Question: what?", "what?"),
        ("Let me think.\nQuestion: what?", "what?"),
        ("Question: __init__ or not?", "__init__ or not?"),
        ("Question: what?\nQuestion: why?", "what?\nwhy?"),
        ("Question: what does Question: mean?", "what does Question: mean?"),
    ],
)
def test_the_text_after_a_header_goes_to_its_channel(text, said):
    parsed = parse_completion(text, ONE, may_decide=True)
    assert parsed.valid
    assert dict(parsed.messages) == {"main": said}
    assert parsed.decision == 2


@pytest.mark.parametrize(
    "text", ["", "what?", "Question:", "Question: \n ", "My Question: what?", "Questions: what?"]
)
def test_a_missing_header_or_an_empty_text_is_invalid(text):
    assert not parse_completion(text, ONE, may_decide=False).valid


@pytest.mark.parametrize(
    "text",
    [
        "To Expert 1: a?\nTo Expert 2: b?",
        "To Expert 2: b?\n\n**to expert_1:** a?",
        "Hm.\nTO EXPERT 1:\na?\n\nTo Expert 2: b?\n",
    ],
)
def test_each_channel_gets_its_own_text(text):
    parsed = parse_completion(text, TWO, may_decide=True)
    assert dict(parsed.messages) == {"prover0_channel": "a?", "prover1_channel": "b?"}
    assert list(parsed.messages) == list(TWO)


@pytest.mark.parametrize(
    "text", ["To Expert 1: a?", "To Expert 1: a?\nTo Expert 2:", "a? b?", "To Expert 3: a?"]
)
def test_each_expected_header_must_be_there(text):
    assert not parse_completion(text, TWO, may_decide=True).valid


def test_a_header_that_begins_like_another_is_told_apart():
    headers = {"a": "To Expert:", "b": "To Expert 2:", "c": "To"}
    parsed = parse_completion("To Expert 2: x\nTo Expert: y\nTo z", headers, may_decide=False)
    assert dict(parsed.messages) == {"a": "y", "b": "x", "c": "z"}


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.booleans())
def test_any_text_is_read_without_an_error_and_invalid_means_nothing(text, may_decide):
    for headers in ({}, ONE, TWO):
        parsed = parse_completion(text, headers, may_decide)
        if not parsed.valid:
            assert (dict(parsed.messages), parsed.decision) == ({}, 2)
        assert (parsed.decision == 2) or may_decide


_LINE = st.text(
    alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="*_`"),
    min_size=1,
).filter(lambda text: text.strip() == text and text.strip())


@given(_LINE, _LINE)
def test_what_was_written_under_headers_is_read_back(first, second):
    text = f"To Expert 1: {first}\nTo Expert 2: {second}"
    parsed = parse_completion(text, TWO, may_decide=False)
    assert dict(parsed.messages) == {"prover0_channel": first, "prover1_channel": second}


def test_a_long_reply_is_read_in_no_time():
    for text in ("Decision: accept" + " " * 200_000 + "x", "*" * 200_000, " \n" * 100_000):
        assert not parse_completion(text, TWO, may_decide=True).valid
        assert read_degree(text) is None


@pytest.mark.parametrize(
    ("name", "text", "decision", "confidence"),
    [
        ("likert_scale_4", "Decision: strongly  agree.", 1, 1.0),
        ("likert_scale_4", "**Decision: Disagree**", 0, 0.5),
        ("likert_scale_6", "decision: somewhat disagree", 0, 1 / 3),
        ("out_of_10", "Decision: 10", 1, 1.0),
        ("out_of_10", "Decision: 1", 0, 0.8),
        ("out_of_100", "Decision: 51", 1, 0.02),
        ("out_of_100", "Decision: 0", 0, 1.0),
    ],
)
def test_a_scale_says_how_sure_a_decision_is(name, text, decision, confidence):
    scale = DECISION_SCALES[name]
    parsed = parse_completion(text, ONE, may_decide=True, scale=scale)
    assert (parsed.valid, parsed.decision) == (True, decision)
    assert parsed.confidence == pytest.approx(confidence)
    assert not parse_completion(f"Question: why?\n{text}", ONE, may_decide=True, scale=scale).valid


@pytest.mark.parametrize("name", ["likert_scale_5", "likert_scale_7"])
def test_the_middle_of_a_scale_is_no_decision(name):
    scale = DECISION_SCALES[name]
    assert len(scale.degrees) == int(name[-1])
    parsed = parse_completion("**Decision:** undecided.", ONE, may_decide=True, scale=scale)
    assert parsed.valid
    assert parsed.decision == NO_DECISION
    assert set(parsed.messages.values()) == {""}
    text = "Question: why?\nDecision: undecided"
    assert not parse_completion(text, ONE, may_decide=True, scale=scale).valid
    assert (scale.surest(1), scale.surest(0)) == ("strongly agree", "strongly disagree")
    assert "Decision: undecided" in scale.instructions


@pytest.mark.parametrize(
    "text", ["Decision: 5", "Decision: 11", "Decision: accept", "Decision: -1"]
)
def test_what_is_not_on_the_scale_is_no_answer(text):
    scale = DECISION_SCALES["out_of_10"]
    assert not parse_completion(text, {}, may_decide=True, scale=scale).valid
    assert scale.surest(1) == "10"
    assert scale.surest(0) == "0"


def test_scales_are_those_that_can_be_chosen():
    assert set(DECISION_SCALES) == set(get_args(DecisionScaleName))
