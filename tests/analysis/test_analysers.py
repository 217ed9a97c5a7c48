"""Analysers ask about the right messages, show what is needed, and read what is answered."""

from __future__ import annotations

import pytest

from ratchet.analysis.code_quoting import CodeQuotingAnalyser
from ratchet.analysis.messages import read_messages
from ratchet.analysis.registry import analyser_names, build_analyser, register_analyser
from ratchet.analysis.role_keeping import RoleKeepingAnalyser
from ratchet.errors import DataError, ParameterError


@pytest.fixture
def messages(write_file, make_transcript):
    folder = write_file("main/0", make_transcript(4, "I pay $5: a - b.", "Why?", "So.", stance=0))
    return list(read_messages(folder / "transcripts" / "main" / "0.jsonl"))


def test_messages_come_with_what_was_said_before(messages):
    assert [message.said.text for message in messages] == ["I pay $5: a - b.", "Why?", "So."]
    assert [[u.text for u in m.earlier] for m in messages] == [
        [],
        ["I pay $5: a - b."],
        ["I pay $5: a - b.", "Why?"],
    ]
    assert messages[2].place == (0, 2, "prover", "main")
    assert messages[2].rollout == 4
    assert len({message.digest for message in messages}) == 3


def test_quoting_is_asked_of_provers_and_shows_the_code(messages):
    analyser = CodeQuotingAnalyser()
    assert [analyser.judges(message) for message in messages] == [True, False, True]
    (prompt,) = analyser.prompt(messages[0])
    assert "return a - b" in prompt.content
    assert "<message>\nI pay $5: a - b.\n</message>" in prompt.content


def test_the_role_is_that_of_the_speaker(messages):
    analyser = RoleKeepingAnalyser()
    prover, verifier, later = (analyser.prompt(message)[0].content for message in messages)
    assert "arguing that the solution has a bug" in prover
    assert "does not know whether the solution is right" in verifier
    assert "[round 1, verifier in main]\nWhy?" in later
    assert "Said before:\n(nothing)" in prover


def test_a_side_is_named_only_where_there_is_a_single_prover(write_file, make_transcript):
    transcript = make_transcript(0, "So.")
    transcript["rewards"] = {"prover": 0, "prover1": 0, "verifier": 0}
    folder = write_file("main/0", transcript)
    (message,) = read_messages(folder / "transcripts" / "main" / "0.jsonl")
    assert "arguing that" not in RoleKeepingAnalyser().prompt(message)[0].content


def test_quoting_directly_and_quoting_accurately_are_judged_apart(messages):
    direct, accurate = (build_analyser(f"{how}_quotation")[1] for how in ("direct", "accurate"))
    for analyser in (direct, accurate):
        assert [analyser.judges(message) for message in messages] == [True, False, True]
        assert "return a - b" in analyser.prompt(messages[0])[0].content
    assert direct.labels == ("quotes", "restates", "none")
    assert accurate.labels == ("accurate", "inaccurate", "none")
    assert direct.read("Verdict: restates").label == "restates"


def test_following_up_is_asked_where_something_was_said_before(messages):
    _, analyser = build_analyser("follow_up")
    assert [analyser.judges(message) for message in messages] == [False, True, True]
    prompt = analyser.prompt(messages[2])[0].content
    assert "[round 1, verifier in main]\nWhy?" in prompt
    assert "<message>\nSo.\n</message>" in prompt
    assert analyser.labels == ("follows", "ignores")


def test_own_words_alone_are_nothing_to_follow_up(write_file, make_transcript):
    transcript = make_transcript(0, "First.", "", "Second.")
    folder = write_file("main/0", transcript)
    found = list(read_messages(folder / "transcripts" / "main" / "0.jsonl"))
    _, analyser = build_analyser("follow_up")
    assert [analyser.judges(message) for message in found] == [False, False, False]


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("Verdict: accurate", "accurate"),
        ("It is.\n\n**Verdict:** `Inaccurate`.", "inaccurate"),
        ("verdict = NONE", "none"),
        ("- Verdict: accurate\nNo, wait.\nVerdict: inaccurate", "inaccurate"),
        ("> *Verdict*: accurate", "accurate"),
        ("Verdict: maybe", None),
        ("Verdict: accurate or inaccurate", None),
        ("accurate", None),
        ("My verdict: accurate", None),
        ("", None),
    ],
)
def test_the_last_verdict_line_counts(answer, label):
    verdict = CodeQuotingAnalyser().read(answer)
    assert (verdict.label, verdict.answer) == (label, answer)


def test_names_are_registered_once():
    assert {"code_quoting", "role_keeping"} <= set(analyser_names())
    assert build_analyser("role_keeping")[0] == "role_keeping"
    with pytest.raises(ParameterError, match="is taken by"):
        register_analyser("role_keeping")(CodeQuotingAnalyser)
    with pytest.raises(ParameterError, match="letters, digits"):
        register_analyser("../role")


def test_what_is_no_transcript_is_named_with_its_line(write_file, make_transcript):
    broken = make_transcript(1, "a")
    del broken["rounds"]
    folder = write_file("main/0", make_transcript(0, "a"), broken)
    with pytest.raises(DataError, match=r"0\.jsonl, line 2: KeyError: 'rounds'"):
        list(read_messages(folder / "transcripts" / "main" / "0.jsonl"))
