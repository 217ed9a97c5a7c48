"""Transcripts contain all messages with agent and round, and are unchanged by a round trip."""

from __future__ import annotations

import json
import math

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.errors import ArrayShapeError, DataError, ParameterError, UnknownNameError
from ratchet.rollouts.concatenation import concatenate_nested_array_dicts
from ratchet.rollouts.specs import add_later_arrays, rollout_spec
from ratchet.rollouts.transcripts import (
    processed_transcripts,
    prompt_transcripts,
    raw_transcripts,
    read_report_transcripts,
    report_transcripts,
    sampled_transcripts,
    to_yaml,
    write_report_transcripts,
    write_transcripts,
)

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


AGENTS, CHANNELS = ("prover", "verifier"), ("main",)


@pytest.fixture
def one_game():
    """Two rounds: the prover argues, the verifier accepts wrongly."""
    rollouts = rollout_spec(3, 2, 1).blank(1)
    rollouts["rollout_id"][0], rollouts["datapoint_id"][0], rollouts["seed"][0] = 7, 3, 11
    rollouts["question"][0], rollouts["solution"][0] = "Q", "S"
    rollouts["round"][0] = [0, 1, 2]
    rollouts["padding"][0, :2] = False
    agents = rollouts["agents"]
    agents["active"][0, 0, 0] = agents["active"][0, 1, 1] = True
    agents["raw_message"][0, 0, 0], agents["raw_message"][0, 1, 1] = (
        "Answer: yes",
        "Decision: accept",
    )
    agents["message"][0, 0, 0, 0] = "yes"
    agents["prompt"][0, 0, 0] = json.dumps([{"role": "system", "content": "Argue."}])
    agents["decision"][0, 1, 1] = 1
    agents["reward"][0, 1] = [1, -1]
    # Steps that were not played and agents that did not act are omitted.
    agents["raw_message"][0, 2, 0] = agents["raw_message"][0, 1, 0] = "never said"
    agents["active"][0, 2, 0] = True
    return rollouts


FACTS = {
    "rollout": 7,
    "datapoint_id": 3,
    "seed": 11,
    "y": 0,
    "prover_stance": 1,
    "question": "Q",
    "solution": "S",
    "decision": 1,
    "correct": False,
    "rewards": {"prover": 1.0, "verifier": -1.0},
}


def test_each_kind_tells_its_part(one_game):
    assert raw_transcripts(one_game, AGENTS, CHANNELS) == [
        FACTS
        | {
            "messages": [
                {"round": 0, "agent": "prover", "text": "Answer: yes"},
                {"round": 1, "agent": "verifier", "text": "Decision: accept"},
            ]
        }
    ]
    assert processed_transcripts(one_game, AGENTS, CHANNELS) == [
        FACTS
        | {
            "messages": [{"round": 0, "agent": "prover", "channel": "main", "text": "yes"}],
            "decisions": [{"round": 1, "agent": "verifier", "decision": 1}],
        }
    ]
    messages = [{"role": "system", "content": "Argue."}]
    assert prompt_transcripts(one_game, AGENTS, CHANNELS) == [
        FACTS | {"prompts": [{"round": 0, "agent": "prover", "messages": messages}]}
    ]


def test_the_reports_lines_tell_it_by_round(one_game, tmp_path):
    one_game["level"] = [2]
    expected = FACTS | {
        "level": 2,
        "always_failed": True,
        "rounds": [
            {
                "round": 0,
                "messages": [{"agent": "prover", "channel": "main", "text": "yes"}],
                "raw": {"prover": "Answer: yes"},
                "decision": {},
            },
            {
                "round": 1,
                "messages": [],
                "raw": {"verifier": "Decision: accept"},
                "decision": {"verifier": 1},
            },
        ],
    }
    assert report_transcripts(one_game, AGENTS, CHANNELS) == [expected]
    write_report_transcripts(tmp_path / "a" / "t.jsonl", one_game, AGENTS, CHANNELS)
    assert list(read_report_transcripts(tmp_path / "a" / "t.jsonl")) == [expected]
    (named,) = report_transcripts(one_game, AGENTS, CHANNELS, label_texts=("bad", "good"))
    assert named == {**expected, "truth": ("bad", "good")[expected["y"]]}


def test_a_verifier_who_keeps_open_is_told_as_such(one_game):
    one_game["agents", "decision"][0, 1, 1] = 2
    (transcript,) = report_transcripts(one_game, AGENTS, CHANNELS)
    assert transcript["rounds"][1]["decision"] == {"verifier": 2}
    assert transcript["decision"] == 2


@pytest.mark.parametrize("format", ["yaml", "json"])
def test_files_read_back_as_what_was_written(make_rollouts, tmp_path, format):
    rollouts = make_rollouts(0, 6)
    files = write_transcripts(tmp_path / "t", rollouts, AGENTS, CHANNELS, format=format)
    assert [file.name for file in files] == [
        f"{k}.{format}" for k in ("raw", "processed", "prompts")
    ]
    load = yaml.safe_load if format == "yaml" else json.loads
    made = (raw_transcripts, processed_transcripts, prompt_transcripts)
    for file, make in zip(files, made, strict=True):
        assert load(file.read_text(encoding="utf-8")) == make(rollouts, AGENTS, CHANNELS)


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_both_kinds_of_file(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp() / "texts"
    rollouts = rollout_spec(1, 1, 1).blank(1)
    rollouts["question"][0] = text
    names = (("verifier",), CHANNELS)
    (file, *_) = write_transcripts(folder, rollouts, *names)
    assert yaml.safe_load(file.read_bytes().decode())[0]["question"] == text
    write_report_transcripts(folder / "t.jsonl", rollouts, *names)
    assert next(read_report_transcripts(folder / "t.jsonl"))["question"] == text


def test_yaml_shows_lines_as_lines(one_game, tmp_path):
    one_game["question"][0] = "first line\nsecond line"
    write_transcripts(tmp_path, one_game, AGENTS, CHANNELS)
    assert (
        "  question: |-\n    first line\n    second line\n" in (tmp_path / "raw.yaml").read_text()
    )


def test_wrong_arguments_are_named(one_game, tmp_path):
    with pytest.raises(ParameterError, match="transcript_format: got 'xml'"):
        write_transcripts(tmp_path, one_game, AGENTS, CHANNELS, format="xml")
    with pytest.raises(ArrayShapeError, match=r"agents\.message: got shape \(1, 3, 2, 1\)"):
        raw_transcripts(one_game, AGENTS, ("main", "side"))
    with pytest.raises(UnknownNameError, match="set verifier_name"):
        raw_transcripts(one_game, ("a", "b"), CHANNELS)
    assert raw_transcripts(one_game, ("a", "b"), CHANNELS, verifier_name="a")[0]["decision"] == 2


def test_a_torn_line_is_named(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"rollout": 0}\n{"rollo')
    with pytest.raises(DataError, match=r"t\.jsonl, line 2"):
        list(read_report_transcripts(tmp_path / "t.jsonl"))


def test_a_sample_is_spread_evenly_and_the_others_keep_what_came_of_them(tmp_path):
    lines = [{"rollout": i, "correct": True, "question": "q", "rounds": [i]} for i in range(10)]
    file = tmp_path / "transcripts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for number, said in ((3, [0, 3, 6]), (0, []), (40, list(range(10)))):
        sampled = [json.loads(line) for line in sampled_transcripts(file, number).splitlines()]
        assert [one["rollout"] for one in sampled if one["rounds"]] == said
        assert all(one["correct"] for one in sampled)
        assert len(sampled) == 10


def test_thinking_and_why_a_reply_is_invalid_stand_beside_what_was_said(one_game):
    """Fields that rollouts of earlier versions lack are omitted."""
    agents = one_game.nested("agents")
    before = report_transcripts(one_game, AGENTS, CHANNELS)
    agents["thinking"][0, 0, 0], agents["invalid_reason"][0, 0, 0] = "Hm.", "an empty reply"
    after = report_transcripts(one_game, AGENTS, CHANNELS)
    assert after[0]["rounds"][0].pop("thinking") == {AGENTS[0]: "Hm."}
    assert after[0]["rounds"][0].pop("invalid") == {AGENTS[0]: "an empty reply"}
    assert after == before
    first = raw_transcripts(one_game, AGENTS, CHANNELS)[0]["messages"][0]
    assert (first["thinking"], first["invalid"]) == ("Hm.", "an empty reply")

    older = one_game.clone()
    for name in ("thinking", "invalid_reason"):
        del older.nested("agents")[name]
    assert report_transcripts(older, AGENTS, CHANNELS) == before
    add_later_arrays(older)
    assert concatenate_nested_array_dicts([older, one_game])["agents", "thinking"][0, 0, 0] is None
