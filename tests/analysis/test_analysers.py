"""Analysers select the right messages, build complete prompts and parse answers."""

from __future__ import annotations

import pytest

from ratchet.analysis.base import analyser_names, build_analyser, register_analyser
from ratchet.analysis.built_in import CodeQuotingAnalyser, RoleKeepingAnalyser
from ratchet.analysis.messages import read_messages
from ratchet.errors import DataError, ParameterError


@pytest.fixture
def messages(write_file, make_transcript):
    folder = write_file("main/0", make_transcript(4, "I pay $5: a - b.", "Why?", "So.", stance=0))
    return list(read_messages(folder / "transcripts" / "main" / "0.jsonl"))


def test_messages_include_the_earlier_messages(messages):
    assert [message.said.text for message in messages] == ["I pay $5: a - b.", "Why?", "So."]
    assert [[u.text for u in m.earlier] for m in messages] == [
        [],
        ["I pay $5: a - b."],
        ["I pay $5: a - b.", "Why?"],
    ]
    assert messages[2].position == (0, 2, "prover", "main")
    assert messages[2].rollout == 4
    assert len({message.digest for message in messages}) == 3


def test_quotation_prompts_cover_provers_and_include_the_code(messages):
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


def test_a_side_is_named_only_for_a_single_prover(write_file, make_transcript):
    transcript = make_transcript(0, "So.")
    transcript["rewards"] = {"prover": 0, "prover1": 0, "verifier": 0}
    folder = write_file("main/0", transcript)
    (message,) = read_messages(folder / "transcripts" / "main" / "0.jsonl")
    assert "arguing that" not in RoleKeepingAnalyser().prompt(message)[0].content


def test_direct_and_accurate_quotation_are_judged_separately(messages):
    direct, accurate = (build_analyser(f"{how}_quotation")[1] for how in ("direct", "accurate"))
    for analyser in (direct, accurate):
        assert [analyser.judges(message) for message in messages] == [True, False, True]
        assert "return a - b" in analyser.prompt(messages[0])[0].content
    assert direct.labels == ("quotes", "restates", "none")
    assert accurate.labels == ("accurate", "inaccurate", "none")
    assert direct.read("Verdict: restates").label == "restates"


def test_follow_up_needs_an_earlier_message(messages):
    _, analyser = build_analyser("follow_up")
    assert [analyser.judges(message) for message in messages] == [False, True, True]
    prompt = analyser.prompt(messages[2])[0].content
    assert "[round 1, verifier in main]\nWhy?" in prompt
    assert "<message>\nSo.\n</message>" in prompt
    assert analyser.labels == ("follows", "ignores")


def test_an_agents_own_messages_are_not_followed_up(write_file, make_transcript):
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
def test_the_last_verdict_line_is_used(answer, label):
    verdict = CodeQuotingAnalyser().read(answer)
    assert (verdict.label, verdict.answer) == (label, answer)


def test_names_are_registered_once():
    assert {"code_quoting", "role_keeping"} <= set(analyser_names())
    assert build_analyser("role_keeping")[0] == "role_keeping"
    with pytest.raises(ParameterError, match="is taken by"):
        register_analyser("role_keeping")(CodeQuotingAnalyser)
    with pytest.raises(ParameterError, match="letters, digits"):
        register_analyser("../role")


def test_an_invalid_transcript_is_reported_with_its_line(write_file, make_transcript):
    broken = make_transcript(1, "a")
    del broken["rounds"]
    folder = write_file("main/0", make_transcript(0, "a"), broken)
    with pytest.raises(DataError, match=r"0\.jsonl, line 2: KeyError: 'rounds'"):
        list(read_messages(folder / "transcripts" / "main" / "0.jsonl"))
